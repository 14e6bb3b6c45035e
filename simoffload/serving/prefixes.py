"""The KV blocks of a replica whose content is known, as the block pool of vLLM has them.

Source: ``v1/core/block_pool.py``, ``kv_cache_coordinator.py`` and ``single_type_kv_cache_manager.py`` of vLLM
0.33.0: blocks that no request uses wait in a queue in the order in which they were released, those of a
request group by group and the tail first, and are found until they are allocated again. Blocks are not
merged: a request that computes what another one has computed has copies, which are found when the others are
forgotten. Blocks that requests have in common are kept as nodes of a tree, each a run of blocks with the same
users and neighbours in the queue, so that the work of a request grows with its runs and not with its blocks;
hits and evictions equal those block by block.
"""

from __future__ import annotations

from bisect import bisect_right
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

    __slots__ = ("begin", "children", "end", "parent", "runs", "text")

    def __init__(self, text: _Text, begin: int, end: int, parent: _Node | None) -> None:
        self.text, self.begin, self.end, self.parent = text, begin, end, parent
        self.children: dict[tuple[int, ...], _Node] = {}
        self.runs: list[_Run] = []
        """Blocks that are known, of each group the one first that is found; a node without any is kept while
        blocks after it are known."""

    def first(self, group: int) -> _Run | None:
        """Return the blocks that are found in a group of layers."""
        for run in self.runs:
            if run.group == group:
                return run
        return None


class _Run:
    """A _Run is blocks with the content of a node in one group of layers."""

    __slots__ = ("group", "newer", "node", "older", "users")

    def __init__(self, node: _Node, group: int, users: set[int]) -> None:
        self.node, self.group, self.users = node, group, users
        self.older: _Run | None = None
        self.newer: _Run | None = None
        """Neighbours in the queue of blocks that nobody uses; None outside the queue."""


class _Own:
    """An _Own is the blocks of a request that are known."""

    __slots__ = ("last", "text")

    def __init__(self, text: _Text, last: _Node) -> None:
        self.text, self.last = text, last
        """The node with the last of them."""


class RadixCache:
    """A RadixCache is a ``PrefixCache`` as a tree of runs of blocks."""

    def __init__(self, block_size: int = 16) -> None:
        self._size = block_size
        self._full, self._number, self._window = 1, 1, 1
        self._root = _Node(_NOBODY, 0, 0, None)
        self._queue = _Run(self._root, 0, set())
        self._queue.older = self._queue.newer = self._queue
        """The ends of the queue: its ``newer`` is the oldest run, its ``older`` the newest one."""
        self._own: dict[int, _Own] = {}
        self._again: set[int] = set()
        """Requests that share nothing, and were preempted."""
        self._path: list[_Node] = []
        """Nodes that were found last."""
        self.unused = 0
        """Known blocks that no request uses."""

    def attend(self, full: int, sliding: int, window: int) -> None:
        """Have blocks of so many groups with full attention, and of those with a window of tokens."""
        self._full, self._number, self._window = full, full + sliding, window

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
            rows.append((*about, [(run.group, sorted(run.users)) for run in node.runs]))
        run = self._queue.newer or self._queue
        while run is not self._queue:
            node = run.node
            known = id(node) in place
            queue.append((place[id(node)], node.runs.index(run)) if known else (node.begin - node.end, 0))
            assert run.newer is not None
            run = run.newer
        own = {one: (numbers[id(own.text)], place[id(own.last)]) for one, own in self._own.items()}
        about = self._size, self._full, self._number - self._full, self._window, sorted(self._again)
        return about, [tuple(one) for one in texts.values()], rows, queue, own

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Build the tree that ``__getstate__`` returned."""
        (size, *groups, again), texts, rows, queue, own = state
        self.__init__(size)  # type: ignore[misc]
        self.attend(*groups)
        self._again.update(again)
        texts, nodes = [_Text(*one) for one in texts], [self._root]
        for text, begin, end, parent, key, runs in rows:
            node = nodes[parent].children[key] = _Node(texts[text], begin, end, nodes[parent])
            node.runs = [_Run(node, group, set(users)) for group, users in runs]
            nodes.append(node)
        for place, run in queue:
            if place > 0:
                self._enqueue(nodes[place].runs[run])
            else:
                self._end_with(-place)
        self._own = {request: _Own(texts[text], nodes[last]) for request, (text, last) in own.items()}

    def match(self, request: int, runs: Runs, tokens: int) -> tuple[int, int]:
        """Return how many of the first ``tokens`` tokens are found, in full blocks and without the last one,
        and how many blocks with them, in all groups, no request uses."""
        if self._is_apart(request, runs):
            return 0, 0
        text, size, full = self._of(request, runs).text, self._size, self._full
        node, at, most, path = self._root, 0, (tokens - 1) // self._size, list[_Node]()
        while at < most:
            child = node.children.get(text.begins(at * size, size))
            if child is None or not all(child.first(group) for group in range(full)):
                break
            end = min(child.end, most)
            at = text.common(child.text, at * size, end * size) // size
            path.append(child)
            if at < child.end:
                break
            node = child
        if full < self._number:
            at = self._within_windows(path, at)
        self._path, unused = path, 0
        passed = self._passed(at)
        for node in path:
            for group in range(self._number):
                begin = node.begin if group < full else max(node.begin, passed)
                run = node.first(group) if begin < at else None
                if run is not None and not run.users:
                    unused += max(0, min(node.end, at) - begin)
        return at * size, unused

    def _within_windows(self, path: list[_Node], end: int) -> int:
        """Return after how many of the first ``end`` blocks of a path a request can go on, whose window must
        be known in the other groups."""
        need, sliding = -(-(self._window - 1) // self._size), range(self._full, self._number)
        right = 0
        for node in reversed(path):
            if all(node.first(group) for group in sliding):
                right = right or min(node.end, end)
                if right - node.begin >= need:
                    return right
            else:
                right = 0
        return right

    def _passed(self, blocks: int) -> int:
        """Return how many of the first blocks a window has left behind it."""
        return max(0, blocks * self._size - self._window + 1) // self._size if self._window > 1 else 0

    def pin(self, request: int, runs: Runs, tokens: int) -> None:
        """Let a request use the blocks of so many tokens, which ``match`` has just found."""
        own, blocks = self._of(request, runs), tokens // self._size
        passed = self._passed(blocks)
        for node in self._path:
            if node.begin >= blocks:
                break
            if node.end > blocks:
                node = self._split(node, blocks)  # noqa: PLW2901
            if node.begin < passed < node.end and self._full < self._number:
                self._use(request, self._split(node, passed), self._full)
            self._use(request, node, self._full if node.begin < passed else self._number)
            own.last = node

    def _use(self, request: int, node: _Node, groups: int) -> None:
        for group in range(groups):
            run = node.first(group)
            assert run is not None
            if not run.users:
                self._unqueue(run)
            run.users.add(request)

    def insert(self, request: int, runs: Runs, tokens: int) -> None:
        """Let others find the full blocks of a request."""
        if self._is_apart(request, runs):
            return
        own, size, blocks = self._of(request, runs), self._size, tokens // self._size
        text, node = own.text, own.last
        while node.end < blocks:
            at = node.end
            key = text.begins(at * size, size)
            child = node.children.get(key)
            if child is None:
                if node.text is text and not node.children and self._is_alone(request, node):
                    node.end = blocks
                    break
                child = node.children[key] = _Node(text, at, blocks, node)
            else:
                most = min(child.end, blocks)
                equal = text.common(child.text, at * size, most * size) // size
                if equal < child.end:
                    child = self._split(child, equal)
            child.runs += [_Run(child, group, {request}) for group in range(self._number)]
            node = child
        own.last = node

    def _is_alone(self, request: int, node: _Node) -> bool:
        """Return whether all blocks of a node are those of a request."""
        return len(node.runs) == self._number and all(run.users == {request} for run in node.runs)

    def keep(self, request: int, runs: Runs, tokens: int, passed: int) -> None:
        """Let a request find its blocks of so many tokens again that shares nothing; in groups with a window,
        it does not use the first ``passed`` ones."""
        self._again.add(request)
        if passed:
            self.insert(request, runs, passed * self._size)
            node = self._own[request].last
            node.runs = [run for run in node.runs if run.group < self._full]
        self.insert(request, runs, tokens)

    def drop(self, request: int, runs: Runs, begin: int, end: int) -> int:
        """Return how many blocks no other uses, of those of a request from ``begin`` to ``end`` in groups
        with a window, which has left them."""
        groups = range(self._full, self._number)
        if self._is_apart(request, runs):
            self._end_with(len(groups) * (end - begin))
            return len(groups) * (end - begin)
        self.insert(request, runs, end * self._size)
        path, node = list[_Node](), self._own[request].last
        while node.end > begin:
            if node.begin < begin:
                self._split(node, begin)
            if node.begin < end < node.end:
                node = self._split(node, end)
            if node.begin < end:
                path.append(node)
            assert node.parent is not None
            node = node.parent
        return self._leave(request, path, groups)

    def _leave(self, request: int, path: list[_Node], groups: range) -> int:
        """Return how many blocks of a path no other than a request uses, which does so no more."""
        freed = 0
        for group in groups:
            for node in path:
                for run in node.runs:
                    if run.group == group and request in run.users:
                        run.users.discard(request)
                        if not run.users:
                            self._enqueue(run)
                            freed += node.end - node.begin
                        break
        return freed

    def release(self, request: int, runs: Runs, tokens: int, *, passed: int, ended: bool) -> int:
        """Return how many blocks of which ``tokens`` are known no other than a request uses, which does so no
        more; in groups with a window, it did not use the first ``passed`` ones. Unless it ``ended`` it is
        computed again."""
        blocks, number = tokens // self._size, self._number
        if self._is_apart(request, runs):
            freed = number * blocks - (number - self._full) * passed
            if ended:  # nobody will find them
                self._end_with(freed)
                return freed
            self.keep(request, runs, tokens, passed)
        self.insert(request, runs, tokens)
        own = self._own.pop(request)
        path, node = [], own.last
        while node.parent is not None:
            path.append(node)
            node = node.parent
        if ended:
            self._again.discard(request)
        return self._leave(request, path, range(number))

    def evict(self, free: int) -> None:
        """Forget the blocks that were released first until at most ``free`` are known that nobody uses."""
        while self.unused > free:
            run, over = self._queue.newer, self.unused - free
            assert run is not None
            node = run.node
            if over < node.end - node.begin:
                if len(node.runs) == 1 and not node.children:
                    node.end -= over
                    self.unused -= over
                    return
                self._split(node, node.end - over)
            self._unqueue(run)
            node.runs.remove(run)
            while not (node.runs or node.children or node.parent is None):
                del node.parent.children[node.text.begins(node.begin * self._size, self._size)]
                node = node.parent

    # -- the tree -----------------------------------------------------------------------------------

    def _is_apart(self, request: int, runs: Runs) -> bool:
        """Return whether a request shares nothing and was not computed before: its blocks then need no place
        in the tree before it releases them."""
        return runs is None and request not in self._again

    def _of(self, request: int, runs: Runs) -> _Own:
        own = self._own.get(request)
        if own is None:
            keys, ends, end = list[int](), list[int](), 0
            for key, tokens in runs or ():
                end += tokens
                keys.append(key)
                ends.append(end)
            text = _Text((*keys, -1 - request), (*ends, _ENDLESS))
            own = self._own[request] = _Own(text, self._root)
        return own

    def _split(self, node: _Node, at: int) -> _Node:
        """Let a node have its blocks from ``at`` on, and return the new one before it with the others."""
        size = self._size
        head = _Node(node.text, node.begin, at, node.parent)
        assert node.parent is not None
        node.parent.children[node.text.begins(node.begin * size, size)] = head
        head.children[node.text.begins(at * size, size)] = node
        node.parent, node.begin = head, at
        for run in node.runs:
            before = _Run(head, run.group, set(run.users))
            head.runs.append(before)
            if run.newer is not None:  # the tail is released first
                before.older, before.newer = run, run.newer
                run.newer.older = before
                run.newer = before
        return head

    # -- the queue ----------------------------------------------------------------------------------

    def _end_with(self, blocks: int) -> None:
        """Let the queue end with blocks that nobody will find."""
        newest = self._queue.older
        if newest is None or newest.node.text is not _NOBODY or newest is self._queue:
            node = _Node(_NOBODY, 0, 0, None)
            newest = _Run(node, 0, set())
            node.runs.append(newest)
            self._enqueue(newest)
        newest.node.end += blocks
        self.unused += blocks

    def _enqueue(self, run: _Run) -> None:
        older = self._queue.older
        assert older is not None
        run.older, run.newer = older, self._queue
        older.newer = self._queue.older = run
        self.unused += run.node.end - run.node.begin

    def _unqueue(self, run: _Run) -> None:
        if run.newer is not None and run.older is not None:
            run.older.newer, run.newer.older = run.newer, run.older
            run.older = run.newer = None
            self.unused -= run.node.end - run.node.begin
