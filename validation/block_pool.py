"""Known KV blocks one by one, as vLLM has them: the oracle of faster ones."""

from __future__ import annotations

from collections import defaultdict

from simoffload.extensions.serving.scheduler import Runs

Key = tuple[tuple[int, int], ...]


class _Block:
    def __init__(self, group: int, key: Key) -> None:
        self.group, self.key, self.users = group, key, 0


class BlockPool:
    """A BlockPool knows full blocks by their group of layers and all tokens up to their end; those that no
    request uses are forgotten in the order of their release, the tail of a request first."""

    def __init__(self, block_size: int = 16) -> None:
        self._size = block_size
        self._full, self._number, self._window = 1, 1, 1
        self._known: defaultdict[tuple[int, Key], list[_Block]] = defaultdict(list)
        self._unused: dict[_Block, None] = {}
        self._own: defaultdict[int, dict[tuple[int, int], _Block]] = defaultdict(dict)
        """Known blocks of a request, by group and number."""
        self._done: defaultdict[int, int] = defaultdict(int)
        """Number of blocks of a request that are known."""

    def attend(self, full: int, sliding: int, window: int) -> None:
        """Have blocks of several groups of layers."""
        self._full, self._number, self._window = full, full + sliding, window

    def _key(self, request: int, runs: Runs, block: int) -> Key:
        """Return all tokens up to the end of a block, as runs; what follows the prompt is the request's
        own."""
        left, found = (block + 1) * self._size, []
        for key, tokens in runs or ():
            found.append((key, min(left, tokens)))
            left -= min(left, tokens)
            if not left:
                return tuple(found)
        return (*found, (-1 - request, left))

    def _found(self, request: int, runs: Runs, block: int, groups: range) -> list[_Block] | None:
        """Return a block in some groups, if it is known in all."""
        key = self._key(request, runs, block)
        found = [self._known[group, key] for group in groups]
        return [one[0] for one in found] if all(found) else None

    def _hit(self, request: int, runs: Runs, tokens: int) -> list[tuple[int, _Block]]:
        """Return the numbers and the blocks of what is found, without those that the window has left."""
        most, full, sliding = 0, range(self._full), range(self._full, self._number)
        end = (tokens - 1) // self._size
        while most < end and self._found(request, runs, most, full) is not None:
            most += 1
        if sliding:
            need, row, last = max(1, -(-(self._window - 1) // self._size)), 0, most
            for block in range(most - 1, -1, -1):
                row = row + 1 if self._found(request, runs, block, sliding) is not None else 0
                last = block
                if row == need:
                    break
            most = last + row
        passed = max(0, most * self._size - self._window + 1) // self._size if sliding else 0
        found = [(block, self._found(request, runs, block, full) or []) for block in range(most)]
        found += [(block, self._found(request, runs, block, sliding) or []) for block in range(passed, most)]
        return [(block, one) for block, several in found for one in several]

    def match(self, request: int, runs: Runs, tokens: int) -> tuple[int, int]:
        """Count known blocks from the first one on."""
        found = self._hit(request, runs, tokens)
        blocks = max((block + 1 for block, _ in found), default=0)
        return blocks * self._size, sum(one in self._unused for _, one in found)

    def pin(self, request: int, runs: Runs, tokens: int) -> None:
        """Count a use of each block."""
        for block, one in self._hit(request, runs, tokens + 1):
            self._use(request, block, one)
        self._done[request] = tokens // self._size

    def _use(self, request: int, number: int, block: _Block) -> None:
        block.users += 1
        self._unused.pop(block, None)
        self._own[request][block.group, number] = block

    def insert(self, request: int, runs: Runs, tokens: int) -> None:
        """Know the blocks that are full, also those that others have, too."""
        for number in range(self._done[request], tokens // self._size):
            self._insert(request, runs, number, self._number)

    def _insert(self, request: int, runs: Runs, number: int, groups: int) -> None:
        key = self._key(request, runs, number)
        for group in range(groups):
            block = _Block(group, key)
            self._known[group, key].append(block)
            self._use(request, number, block)
        self._done[request] = number + 1

    @property
    def unused(self) -> int:
        """Number of known blocks that no request uses."""
        return len(self._unused)

    def keep(self, request: int, runs: Runs, tokens: int, passed: int) -> None:
        """Know the blocks that are full, without those that a window has left."""
        for number in range(self._done[request], min(passed, tokens // self._size)):
            self._insert(request, runs, number, self._full)
        self.insert(request, runs, tokens)

    def drop(self, request: int, runs: Runs, begin: int, end: int) -> int:
        """Count a use less of each block that a window has left."""
        self.keep(request, runs, end * self._size, begin)
        numbers = range(end - 1, begin - 1, -1)
        return sum(self._free(request, g, n) for g in range(self._full, self._number) for n in numbers)

    def lose(self, blocks: int) -> None:
        """Have blocks that nobody finds."""
        for _ in range(blocks):
            self._unused[_Block(0, ())] = None

    def _free(self, request: int, group: int, number: int) -> bool:
        """Count a use less of a block, and return whether nobody uses it."""
        block = self._own[request].pop((group, number))
        block.users -= 1
        if not block.users:
            self._unused[block] = None
        return not block.users

    def release(self, request: int, runs: Runs, tokens: int, *, passed: int, ended: bool) -> int:  # noqa: ARG002
        """Count a use less of each block."""
        self.keep(request, runs, tokens, passed)
        order = sorted(self._own[request], key=lambda one: (one[0], -one[1]))
        freed = sum(self._free(request, *one) for one in order)
        del self._own[request], self._done[request]
        return freed

    def evict(self, free: int) -> None:
        """Forget the blocks that were released first."""
        while len(self._unused) > free:
            block = next(iter(self._unused))
            del self._unused[block]
            if block.key:
                self._known[block.group, block.key].remove(block)
