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

from simoffload.extensions.serving.scheduler import Runs

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

    def __init__(self, text: _Text, begin: int, end: int, parent: _Node | None, kinds: int) -> None:
        self.text, self.begin, self.end, self.parent = text, begin, end, parent
        self.children: dict[tuple[int, ...], _Node] = {}
        self.runs: list[list[_BlockRun]] = [[] for _ in range(kinds)]
        """Blocks that are known in each kind of group, the ones first that are found; a node without any is
        kept while blocks after it are known."""


class _BlockRun:
    """A _BlockRun is blocks with the content of a node in groups of a kind."""

    __slots__ = ("kind", "newer", "node", "older", "users")

    def __init__(self, node: _Node, kind: int, users: set[int]) -> None:
        self.node, self.kind, self.users = node, kind, users
        self.older: _BlockRun | None = None
        self.newer: _BlockRun | None = None
        """Neighbours in the queue of blocks that nobody uses; None outside the queue."""


class _Own:
    """An _Own is the blocks of a request that are known."""

    __slots__ = ("front", "last", "passed", "text")

    def __init__(self, text: _Text, last: _Node, passed: int = 0) -> None:
        self.text, self.last = text, last
        """The node with the last of them."""
        self.passed = passed
        """Number of the first ones, which the request does not use in groups with a window."""
        self.front: _Node | None = None
        """The node with the next one, if it was looked for, or one after it that was split from that."""


class RadixCache:
    """A RadixCache is a ``PrefixCache`` as a tree of runs of blocks.

    Groups are of four kinds: the first one with full attention, the others, the first one with a window, and
    the others. As the blocks of the first one are always forgotten before those of the others, it decides
    what is found, and the blocks of the others are counted together.
    """

    def __init__(self, block_size: int = 16) -> None:
        self._size = block_size
        self._root = _Node(_NOBODY, 0, 0, None, 0)
        self._queue = _BlockRun(self._root, 0, set())
        self._queue.older = self._queue.newer = self._queue
        """The ends of the queue: its ``newer`` is the oldest run, its ``older`` the newest one."""
        self._own: dict[int, _Own] = {}
        self._again: set[int] = set()
        """Requests that share nothing, and were preempted."""
        self._path: list[_Node] = []
        """Nodes that were found last."""
        self.unused = 0
        """Known blocks that no request uses."""
        self.attend(1, 0, 1)

    def attend(self, full: int, sliding: int, window: int) -> None:
        """Have blocks of so many groups with full attention, and of those with a window of tokens."""
        self._groups = full, sliding, window
        self._uneven = bool(sliding and (window % self._size or not full))
        """Whether a window may begin with a block that it has left, or nothing else is kept."""
        first = [one for one in (min(full, 1), full - 1) if one > 0]
        self._full = len(first)
        """Number of kinds with full attention."""
        self._weights = [*first, *(one for one in (min(sliding, 1), sliding - 1) if one > 0)]
        """Number of groups of each kind."""
        self._kinds = len(self._weights)

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
            rows.append((*about, [[sorted(run.users) for run in runs] for runs in node.runs]))
        run = self._queue.newer or self._queue
        while run is not self._queue:
            node, kind = run.node, run.kind
            known = id(node) in place
            at = (
                (place[id(node)], kind, node.runs[kind].index(run))
                if known
                else (node.begin - node.end, 0, 0)
            )
            queue.append(at)
            assert run.newer is not None
            run = run.newer
        own = {one: (numbers[id(o.text)], place.get(id(o.last), 0), o.passed) for one, o in self._own.items()}
        settings = self._size, self._groups, sorted(self._again)
        return settings, [tuple(one) for one in texts.values()], rows, queue, own

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Build the tree that ``__getstate__`` returned."""
        (size, groups, again), texts, rows, queue, own = state
        self.__init__(size)  # type: ignore[misc]
        self.attend(*groups)
        self._again.update(again)
        texts, nodes = [_Text(*one) for one in texts], [self._root]
        for text, begin, end, parent, key, kinds in rows:
            node = nodes[parent].children[key] = _Node(texts[text], begin, end, nodes[parent], 0)
            node.runs = [[_BlockRun(node, kind, set(one)) for one in runs] for kind, runs in enumerate(kinds)]
            nodes.append(node)
        for place, kind, run in queue:
            if place > 0:
                self._enqueue(nodes[place].runs[kind][run])
            else:
                self.lose(-place)
        self._own = {one: _Own(texts[text], nodes[last], passed) for one, (text, last, passed) in own.items()}

    def match(self, request: int, runs: Runs, tokens: int) -> tuple[int, int]:
        """Return how many of the first ``tokens`` tokens are found, in full blocks and without the last one,
        and how many blocks with them, in all groups, no request uses."""
        if self._is_apart(request, runs):
            return 0, 0
        text, size, full = self._of(request, runs).text, self._size, self._full
        node, at, most, path = self._root, 0, (tokens - 1) // self._size, list[_Node]()
        while at < most:
            child = node.children.get(text.begins(at * size, size))
            if child is None or not all(child.runs[:full]):
                break
            end = min(most, child.end)
            at = end if end == at + 1 else text.common(child.text, at * size, end * size) // size
            path.append(child)
            if at < child.end:
                break
            node = child
        if full < self._kinds:
            at = self._within_windows(path, at)
        self._path, unused, passed = path, 0, self._passed(at)
        for node in path:
            if node.begin >= at:
                break
            end = min(at, node.end)
            for kind in range(full if node.end <= passed else self._kinds):
                if not node.runs[kind][0].users:
                    begin = passed if kind >= full and node.begin < passed else node.begin
                    unused += self._weights[kind] * (end - begin)
        return at * size, unused

    def _within_windows(self, path: list[_Node], end: int) -> int:
        """Return after how many of the first ``end`` blocks of a path a request can go on, whose window must
        be known in groups with one."""
        need, first = -(-(self._groups[2] - 1) // self._size), self._full
        right = 0
        for node in reversed(path):
            if all(node.runs[first:]):
                right = right or min(node.end, end)
                if right - node.begin >= need:
                    return right
            else:
                right = 0
        return right

    def _passed(self, blocks: int) -> int:
        """Return how many of the first blocks a window has left behind it."""
        if self._full == self._kinds:
            return 0
        return max(0, blocks * self._size - self._groups[2] + 1) // self._size

    def pin(self, request: int, runs: Runs, tokens: int) -> None:
        """Let a request use the blocks of so many tokens, which ``match`` has just found."""
        own, blocks = self._of(request, runs), tokens // self._size
        own.passed = passed = self._passed(blocks)
        for node in self._path:
            if node.begin >= blocks:
                break
            if node.end > blocks:
                node = self._split(node, blocks)  # noqa: PLW2901
            if node.begin < passed < node.end:
                self._use(request, self._split(node, passed), self._full)
            self._use(request, node, self._full if node.begin < passed else self._kinds)
            own.last = node

    def _use(self, request: int, node: _Node, kinds: int) -> None:
        for kind in range(kinds):
            run = node.runs[kind][0]
            if not run.users:
                self._unqueue(run)
            run.users.add(request)

    def insert(self, request: int, runs: Runs, tokens: int) -> None:
        """Let others find the full blocks of a request."""
        if self._is_apart(request, runs):
            return
        own, blocks = self._of(request, runs), tokens // self._size
        if own.last.parent is None:  # its window has left all, which is forgotten
            own.last = self._root
        if own.last.end < own.passed:
            self._extend(request, own, min(blocks, own.passed), self._full)
        self._extend(request, own, blocks, self._kinds)

    def _extend(self, request: int, own: _Own, blocks: int, kinds: int) -> None:
        """Let others find so many blocks of a request, new ones in some kinds of groups."""
        text, node, size = own.text, own.last, self._size
        while node.end < blocks:
            at = node.end
            key = text.begins(at * size, size)
            child = node.children.get(key)
            if child is None:
                if node.text is text and not node.children and self._is_alone(request, node, kinds):
                    node.end = blocks
                    break
                child = node.children[key] = _Node(text, at, blocks, node, self._kinds)
            else:
                most = min(child.end, blocks)
                equal = text.common(child.text, at * size, most * size) // size
                if equal < child.end:
                    child = self._split(child, equal)
            for kind in range(kinds):
                child.runs[kind].append(_BlockRun(child, kind, {request}))
            node = child
        own.last = node

    def _is_alone(self, request: int, node: _Node, kinds: int) -> bool:
        """Return whether a node has blocks of a request in some kinds of groups, and no others."""
        for kind, runs in enumerate(node.runs):
            if len(runs) != (kind < kinds) or (runs and runs[0].users != {request}):
                return False
        return True

    def keep(self, request: int, runs: Runs, tokens: int, passed: int) -> None:
        """Let a request find its blocks of so many tokens again, if it is preempted; in groups with a window,
        it does not use the first ``passed`` ones."""
        if runs is None:
            self._again.add(request)
        self._of(request, runs).passed = passed
        self.insert(request, runs, tokens)

    def drop(self, request: int, runs: Runs, begin: int, end: int) -> int:
        """Return how many blocks no other uses, of those of a request from ``begin`` to ``end`` in groups
        with a window, which has left them."""
        if self._is_apart(request, runs):
            self.lose(self._groups[1] * (end - begin))
            return self._groups[1] * (end - begin)
        own = self._of(request, runs)
        own.passed = begin
        self.insert(request, runs, end * self._size)
        own.passed = end
        path, node = list[_Node](), own.last
        if own.front is not None and own.front.end > begin and end == begin + 1:
            node = own.front
        after = None
        while node.end > begin:
            if node.begin < begin:
                self._split(node, begin)
            if node.begin < end < node.end:
                after, node = node, self._split(node, end)
            if node.begin < end:
                path.append(node)
            else:
                after = node
            assert node.parent is not None
            node = node.parent
        own.front = after or path[0].children.get(own.text.begins(end * self._size, self._size))
        return self._leave(request, path, self._full)

    def _leave(self, request: int, path: list[_Node], first: int) -> int:
        """Return how many blocks of a path no other than a request uses, which does so no more, in all kinds
        of groups from a first one on."""
        alone = 0
        for kind in range(first, self._kinds):
            for node in path:
                for run in node.runs[kind]:
                    if request in run.users:
                        run.users.remove(request)
                        if not run.users:
                            self._enqueue(run)
                            alone += self._weights[kind] * (node.end - node.begin)
                        break
        return alone

    def release(self, request: int, runs: Runs, tokens: int, *, passed: int, ended: bool) -> int:
        """Return how many blocks of which ``tokens`` are known no other than a request uses, which does so no
        more; in groups with a window, it did not use the first ``passed`` ones. Unless it ``ended`` it is
        computed again."""
        if ended and self._is_apart(request, runs):  # nobody will find them
            full, sliding, _ = self._groups
            blocks = tokens // self._size
            alone = full * blocks + sliding * (blocks - passed)
            self.lose(alone)
            return alone
        self.keep(request, runs, tokens, passed)
        path, node = list[_Node](), self._own.pop(request).last
        while node.parent is not None:
            path.append(node)
            node = node.parent
        if ended:
            self._again.discard(request)
        return self._leave(request, path, 0)

    def evict(self, free: int) -> None:
        """Forget the blocks that were released first until at most ``free`` are known that nobody uses."""
        while self.unused > free:
            run, over = self._queue.newer, self.unused - free
            assert run is not None
            node, weight = run.node, self._weights[run.kind]
            blocks = weight * (node.end - node.begin)
            alone = self._full and not node.children and sum(map(len, node.runs)) <= 1
            if over < blocks and (weight > 1 or alone or node.text is _NOBODY):
                if weight > 1:
                    self._forget(run)
                    run.node, run.kind = _Node(_NOBODY, 0, blocks, None, 0), 0
                run.node.end -= over
                self.unused -= over
                return
            if over < blocks:
                self._split(node, node.end - over)
            self._unqueue(run)
            self._forget(run)

    def _forget(self, run: _BlockRun) -> None:
        """Let blocks not be found any more, and remove what leads to no known block."""
        node = run.node
        if node.parent is not None:
            node.runs[run.kind].remove(run)
        while (parent := node.parent) is not None and not (node.children or any(node.runs)):
            del parent.children[node.text.begins(node.begin * self._size, self._size)]
            node.parent, node = None, parent

    def lose(self, blocks: int) -> None:
        """Let the queue end with blocks that nobody will find."""
        if not blocks:
            return
        newest = self._queue.older
        if newest is None or newest.node.text is not _NOBODY or newest is self._queue:
            newest = _BlockRun(_Node(_NOBODY, 0, 0, None, 0), 0, set())
            self._enqueue(newest)
        newest.node.end += blocks
        self.unused += blocks

    # -- the tree -----------------------------------------------------------------------------------

    def _is_apart(self, request: int, runs: Runs) -> bool:
        """Return whether a request shares nothing and was not computed before: its blocks then need no place
        in the tree before it releases them."""
        return runs is None and not self._uneven and request not in self._again

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
        head = _Node(node.text, node.begin, at, node.parent, self._kinds)
        assert node.parent is not None
        node.parent.children[node.text.begins(node.begin * size, size)] = head
        head.children[node.text.begins(at * size, size)] = node
        node.parent, node.begin = head, at
        for runs, heads in zip(node.runs, head.runs, strict=True):
            for run in runs:
                before = _BlockRun(head, run.kind, set(run.users))
                heads.append(before)
                if run.newer is not None:  # the tail is released first
                    before.older, before.newer = run, run.newer
                    run.newer.older = before
                    run.newer = before
        return head

    # -- the queue ----------------------------------------------------------------------------------

    def _enqueue(self, run: _BlockRun) -> None:
        older = self._queue.older
        assert older is not None
        run.older, run.newer = older, self._queue
        older.newer = self._queue.older = run
        self.unused += self._weights[run.kind] * (run.node.end - run.node.begin)

    def _unqueue(self, run: _BlockRun) -> None:
        if run.newer is not None and run.older is not None:
            run.older.newer, run.newer.older = run.newer, run.older
            run.older = run.newer = None
            self.unused -= self._weights[run.kind] * (run.node.end - run.node.begin)
