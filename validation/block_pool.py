"""A prefix cache block by block, as vLLM's: the oracle of faster ones."""

from __future__ import annotations

from collections import Counter, defaultdict

from simoffload.serving.scheduler import Runs

Key = tuple[tuple[int, int], ...]


class BlockPool:
    """A BlockPool knows full blocks by all tokens up to their end; those that no request uses are forgotten
    in the order of their release, the tail of a request first."""

    def __init__(self, block_size: int = 16) -> None:
        self._size = block_size
        self._uses = Counter[Key]()
        self._unused: dict[Key, None] = {}
        self._own: defaultdict[int, list[Key]] = defaultdict(list)
        self._done = Counter[int]()
        """Blocks of a request that are known, or were when it computed them."""

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

    def match(self, request: int, runs: Runs, tokens: int) -> tuple[int, int]:
        """Count known blocks from the first one on."""
        blocks = unused = 0
        while (blocks + 1) * self._size < tokens:
            key = self._key(request, runs, blocks)
            if not self._uses[key] and key not in self._unused:
                break
            unused += key in self._unused
            blocks += 1
        return blocks * self._size, unused

    def pin(self, request: int, runs: Runs, tokens: int) -> None:
        """Count a use of each block."""
        for block in range(tokens // self._size):
            self._use(request, self._key(request, runs, block))
        self._done[request] = tokens // self._size

    def _use(self, request: int, key: Key) -> None:
        self._uses[key] += 1
        self._unused.pop(key, None)
        self._own[request].append(key)

    def insert(self, request: int, runs: Runs, tokens: int) -> None:
        """Know the blocks that are full; one that is known already stays the other's."""
        for block in range(self._done[request], tokens // self._size):
            key = self._key(request, runs, block)
            if not self._uses[key] and key not in self._unused:
                self._use(request, key)
        self._done[request] = max(self._done[request], tokens // self._size)

    @property
    def unused(self) -> int:
        """Number of known blocks that no request uses."""
        return len(self._unused)

    def release(self, request: int, runs: Runs, tokens: int, *, ended: bool) -> int:  # noqa: ARG002
        """Count a use less of each block."""
        self.insert(request, runs, tokens)
        shared = 0
        for key in reversed(self._own.pop(request, [])):
            self._uses[key] -= 1
            if self._uses[key]:
                shared += 1
            else:
                del self._uses[key]
                self._unused[key] = None
        del self._done[request]
        return -(-tokens // self._size) - shared

    def evict(self, free: int) -> None:
        """Forget the blocks that were released first."""
        while len(self._unused) > free:
            del self._unused[next(iter(self._unused))]
