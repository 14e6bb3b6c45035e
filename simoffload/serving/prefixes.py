"""The prefix cache of a replica: blocks of earlier requests that are used again, as vLLM's block pool has it.

Source: ``v1/core/block_pool.py`` of vLLM 0.33.0: the blocks of a request that ends go to the end of the queue
of free blocks, the tail first, and are found until they are allocated again. Blocks that requests have in
common are kept as nodes of a tree, each a run of blocks with the same users and neighbours in the queue, so
that the work of a request grows with its runs and not with its blocks; hits and evictions equal those block
by block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from simoffload.serving.scheduler import Runs

__all__ = ["RadixCache"]

_ENDLESS = 1 << 62


class _Text(NamedTuple):
    """A _Text is what a request computes: its runs, then what it generates."""

    keys: tuple[int, ...]
    ends: tuple[int, ...]
    """Position after each run [tokens]."""

    def begins(self, at: int, size: int) -> tuple[int, ...]:
        """Return what tells the block at a position from others after the same tokens."""
        run = bisect_right(self.ends, at)
        key, end = self.keys[run], self.ends[run]
        if end >= at + size:
            return run, key
        found = [run, key]
        while end < at + size:
            run += 1
            found += (end, self.keys[run])
            end = self.ends[run]
        return tuple(found)

    def common(self, other: _Text, at: int, most: int) -> int:
        """Return the position, at most ``most``, up to which two texts are equal that are so up to ``at``."""
        if self is other:
            return most
        run = bisect_right(self.ends, at)
        if run != bisect_right(other.ends, at):
            return at
        while self.keys[run] == other.keys[run]:
            end, same = self.ends[run], other.ends[run]
            at = min(end, same)
            if at >= most:
                return most
            if end != same:
                return at
            run += 1
        return at


_NOBODY = _Text((), ())
"""Text of blocks that are in the queue and cannot be found."""


class _Node:
    """A _Node is the blocks from ``begin`` to ``end`` of a text."""

    __slots__ = ("begin", "children", "end", "known", "newer", "older", "parent", "text", "users")

    def __init__(self, text: _Text, begin: int, end: int, parent: _Node | None) -> None:
        self.text, self.begin, self.end, self.parent = text, begin, end, parent
        self.children: dict[tuple[int, ...], _Node] = {}
        self.users: set[int] = set()
        self.known = False
        """Whether its blocks can be found; others are kept while blocks after them are known."""
        self.older: _Node | None = None
        self.newer: _Node | None = None
        """Neighbours in the queue of blocks that nobody uses; None outside the queue."""


class _Own(NamedTuple):
    text: _Text
    done: list[int]
    """Blocks of the request that are known, or were when it computed them."""


class RadixCache:
    """A RadixCache is a ``PrefixCache`` as a tree of runs of blocks."""

    def __init__(self, block_size: int = 16) -> None:
        self._size = block_size
        self._root = _Node(_Text((), ()), 0, 0, None)
        self._queue = _Node(_Text((), ()), 0, 0, None)
        self._queue.older = self._queue.newer = self._queue
        """The ends of the queue: its ``newer`` is the oldest node, its ``older`` the newest one."""
        self._own: dict[int, _Own] = {}
        self.unused = 0
        """Known blocks that no request uses."""

    def __getstate__(self) -> tuple[Any, ...]:
        """Return the tree as rows, as its nodes refer to each other in long chains."""
        nodes = [self._root]
        for node in nodes:  # which grows
            nodes.extend(node.children.values())
        place = {id(node): row for row, node in enumerate(nodes)}
        texts = {id(node.text): node.text for node in nodes}
        texts |= {id(own.text): own.text for own in self._own.values()}
        numbers = {one: row for row, one in enumerate(texts)}
        rows, queue = [], []
        for node in nodes[1:]:
            assert node.parent is not None
            key = node.text.begins(node.begin * self._size, self._size)
            about = numbers[id(node.text)], node.begin, node.end, place[id(node.parent)], key
            rows.append((*about, sorted(node.users), node.known))
        node = self._queue.newer or self._queue
        while node is not self._queue:
            queue.append(place.get(id(node), node.begin - node.end))
            assert node.newer is not None
            node = node.newer
        own = {request: (numbers[id(one.text)], one.done[0]) for request, one in self._own.items()}
        return self._size, [tuple(one) for one in texts.values()], rows, queue, own

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Build the tree that ``__getstate__`` returned."""
        size, texts, rows, queue, own = state
        self.__init__(size)  # type: ignore[misc]
        texts, nodes = [_Text(*one) for one in texts], [self._root]
        for text, begin, end, parent, key, users, known in rows:
            node = nodes[parent].children[key] = _Node(texts[text], begin, end, nodes[parent])
            node.users, node.known = set(users), known
            nodes.append(node)
        for one in queue:
            self._enqueue(nodes[one] if one > 0 else _Node(_NOBODY, 0, -one, None))
        self._own = {request: _Own(texts[text], [done]) for request, (text, done) in own.items()}

    def match(self, request: int, runs: Runs, tokens: int) -> tuple[int, int]:
        """Return how many of the first ``tokens`` tokens are found, in full blocks and without the last one,
        and how many of their blocks no request uses."""
        if self._is_apart(request, runs):
            return 0, 0
        text, size = self._of(request, runs).text, self._size
        node, at, unused, most = self._root, 0, 0, (tokens - 1) // size
        while at < most:
            child = node.children.get(text.begins(at * size, size))
            if child is None or not child.known:
                break
            end = min(child.end, most)
            equal = text.common(child.text, at * size, end * size) // size
            if not child.users:
                unused += equal - at
            node, at = child, equal
            if equal < child.end:
                break
        return at * size, unused

    def pin(self, request: int, runs: Runs, tokens: int) -> None:
        """Let a request use the blocks of so many tokens, which ``match`` has just found."""
        own, size, node = self._of(request, runs), self._size, self._root
        own.done[0] = blocks = tokens // size
        while node.end < blocks:
            node = node.children[own.text.begins(node.end * size, size)]
            if node.end > blocks:
                node = self._split(node, blocks)
            if not node.users:
                self._unqueue(node)
            node.users.add(request)

    def insert(self, request: int, runs: Runs, tokens: int) -> None:
        """Let others find the full blocks of a request; one that is known already stays the other's."""
        if self._is_apart(request, runs):
            return
        own, size, node = self._of(request, runs), self._size, self._root
        text, done, blocks = own.text, own.done[0], tokens // size
        if done >= blocks:
            return
        own.done[0] = blocks
        while node.end < blocks:
            goal = done if node.end < done else blocks
            key = text.begins(node.end * size, size)
            child = node.children.get(key)
            if child is None:
                if node.text is text and node.end >= done and node.users == {request} and not node.children:
                    node.end = goal
                    continue
                child = node.children[key] = _Node(text, node.end, goal, node)
            else:
                most = min(child.end, blocks if child.known else goal)
                equal = text.common(child.text, node.end * size, most * size) // size
                if child.known and equal == blocks:
                    return
                if equal < child.end:
                    child = self._split(child, equal)
            if child.begin >= done and not child.known:
                child.known = True
                child.users.add(request)
            node = child

    def release(self, request: int, runs: Runs, tokens: int, *, ended: bool) -> int:
        """Return how many blocks of a request with so many tokens no other uses; it does not use its blocks
        any more, and unless it ``ended`` it is computed again."""
        if self._is_apart(request, runs):
            blocks = tokens // self._size
            if ended:  # nobody will find them: they have a place in the queue alone, with others before them
                newest = self._queue.older
                if newest is None or newest.text is not _NOBODY:
                    newest = _Node(_NOBODY, 0, 0, None)
                    self._enqueue(newest)
                newest.end += blocks
                self.unused += blocks
            elif blocks:
                text = _Text((-1 - request,), (_ENDLESS,))
                node = self._root.children[0, -1 - request] = _Node(text, 0, blocks, self._root)
                node.known = True
                self._enqueue(node)
            return -(-tokens // self._size)
        self.insert(request, runs, tokens)
        own, shared = self._own.pop(request), 0
        for node in reversed(list(self._found(own.text, own.done[0]))):
            if request not in node.users:
                continue
            node.users.discard(request)
            if node.users:
                shared += node.end - node.begin
            else:
                self._enqueue(node)
        return -(-tokens // self._size) - shared

    def evict(self, free: int) -> None:
        """Forget the blocks that were released first until at most ``free`` are known that nobody uses."""
        while self.unused > free:
            node, over = self._queue.newer, self.unused - free
            assert node is not None
            if over < node.end - node.begin:
                if not node.children:
                    node.end -= over
                    self.unused -= over
                    return
                self._split(node, node.end - over)
            self._forget(node)

    # -- the tree -----------------------------------------------------------------------------------

    def _is_apart(self, request: int, runs: Runs) -> bool:
        """Return whether a request shares nothing and was not computed before: its blocks then need no place
        in the tree before it releases them."""
        return runs is None and request not in self._own and (0, -1 - request) not in self._root.children

    def _of(self, request: int, runs: Runs) -> _Own:
        own = self._own.get(request)
        if own is None:
            keys, ends, end = list[int](), list[int](), 0
            for key, tokens in runs or ():
                end += tokens
                keys.append(key)
                ends.append(end)
            text = _Text((*keys, -1 - request), (*ends, _ENDLESS))
            own = self._own[request] = _Own(text, [0])
        return own

    def _found(self, text: _Text, blocks: int) -> Iterator[_Node]:
        """Yield the nodes of a text; the last one may end after ``blocks``, or continue otherwise."""
        node, size = self._root, self._size
        while node.end < blocks:
            child = node.children.get(text.begins(node.end * size, size))
            if child is None:
                return
            yield child
            if text.common(child.text, child.begin * size, child.end * size) < child.end * size:
                return
            node = child

    def _split(self, node: _Node, at: int) -> _Node:
        """Let a node have its blocks from ``at`` on, and return the new one before it with the others."""
        size = self._size
        head = _Node(node.text, node.begin, at, node.parent)
        head.known, head.users = node.known, set(node.users)
        assert node.parent is not None
        node.parent.children[node.text.begins(node.begin * size, size)] = head
        head.children[node.text.begins(at * size, size)] = node
        node.parent, node.begin = head, at
        if node.newer is not None:
            head.older, head.newer = node, node.newer
            node.newer.older = head
            node.newer = head
        return head

    def _forget(self, node: _Node) -> None:
        """Let the blocks of a node not be found any more, and remove what leads to no known block."""
        self._unqueue(node)
        node.known = False
        while not (node.known or node.children or node.parent is None):
            del node.parent.children[node.text.begins(node.begin * self._size, self._size)]
            node = node.parent

    # -- the queue ----------------------------------------------------------------------------------

    def _enqueue(self, node: _Node) -> None:
        older = self._queue.older
        assert older is not None
        node.older, node.newer = older, self._queue
        older.newer = self._queue.older = node
        self.unused += node.end - node.begin

    def _unqueue(self, node: _Node) -> None:
        if node.newer is not None and node.older is not None:
            node.older.newer, node.newer.older = node.newer, node.older
            node.older = node.newer = None
            self.unused -= node.end - node.begin
