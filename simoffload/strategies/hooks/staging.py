"""Hooks that bring weights from their homes to the GPU: some layers ahead, or when a module is called."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from simoffload.strategies.held import Held
from simoffload.strategies.homes import HBM, Homes
from simoffload.strategies.passes.pass_writer import STAGING, Hook, Part, PassWriter


class Prefetched(Hook):
    """Layers are brought to the GPU a number of layers ahead, as soon as the layer before the present one has
    been computed; what is outside of the layers, when the part begins that uses it.

    A copy from pageable memory takes the host thread, which launches the kernels of the present layer after
    it, so that such a copy is hidden by no computation, however far ahead.
    """

    streams = STAGING

    def __init__(self, homes: Homes, *, ahead: int = 1) -> None:
        self._homes, self._ahead = homes, ahead

    def state(self, part: Part) -> Hashable:
        """Return the homes and sizes of what is brought in a part."""
        return (part.layer == 0, *map(id, self._brought(part.layer))) if part.layer >= 0 else None

    def _brought(self, layer: int) -> Iterator[object]:
        layers = self._homes.layers
        first = 0 if layer == 0 else layer + self._ahead
        yield from layers[first : layer + self._ahead + 1]

    def enter(self, part: Part, out: PassWriter) -> None:
        """Bring the first layers, or the one that is the number of layers ahead."""
        layers, at = self._homes.layers, part.layer
        if at < 0:
            for call in part.calls:
                out.stage(self, self._homes.sizes(call.module), self._homes.home(at, call.module))
            return
        first = 0 if at == 0 else at + self._ahead
        for layer in range(first, min(at + self._ahead + 1, len(layers))):
            for home, sizes in layers[layer].items():
                if layer == at:  # into the place of the layer before
                    out.stage(self, sizes, home, after=out.on_gpu())
                else:
                    out.stage(self, sizes, home, layer=layer, after=out.on_gpu())

    def holds(self) -> Iterator[Held]:
        """Yield room on the GPU for the layers in flight, and two pinned buffers for those in files."""
        layers, outside = self._homes.layers, self._homes.outside
        brought = [
            sum(sum(sizes) for home, sizes in one.items() if home.tier != HBM.tier and not home.in_place)
            for one in (*layers, outside)
        ]
        if alone := brought.pop():
            yield Held("hbm", "embedding and head on their way", alone, kind="staging")
        if most := max(brought, default=0):
            yield Held("hbm", "layers on their way", (1 + self._ahead) * most, kind="staging")
        stored = [
            sum(sum(sizes) for home, sizes in one.items() if home.tier not in ("hbm", "dram"))
            for one in (*layers, outside)
        ]
        if most := max(stored, default=0):
            name = "buffers of layers on their way"
            yield Held("dram", name, 2 * most, pinned=True, kind="staging")
