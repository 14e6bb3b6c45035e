"""A hook of your own: each layer is brought one layer ahead, and the GPU checks its bytes before its use.

``python checked_layers.py run checked_layers.yaml`` simulates it.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from simoffload.cli import main
from simoffload.strategies.authoring import (
    HBM,
    STAGING,
    Dependency,
    ForwardPass,
    Held,
    Home,
    Homes,
    Hook,
    HookedPlan,
    HookedStrategy,
    Machine,
    ModelShape,
    Part,
    PassWriter,
    register,
)


class Checked(Hook):
    """Bring layers one layer ahead, and check each on a stream of the GPU."""

    streams = (*STAGING, "check")

    def __init__(self, homes: Homes, rate: float, lookup_s: float) -> None:
        self._layers, self._rate, self._lookup_s = homes.layers, rate, lookup_s

    def _brought(self, at: int) -> range:
        """Numbers of the layers that are brought in a part: in the first layer also itself."""
        first = max(at, 0) if at <= 0 else at + 1
        return range(first, min(at + 2, len(self._layers)) if at >= 0 else 0)

    def state(self, part: Part) -> tuple[int, ...]:
        """All on which the operations of a part depend: equal layers are one object."""
        return tuple(id(self._layers[layer]) for layer in self._brought(part.layer))

    def enter(self, part: Part, out: PassWriter) -> None:
        """The host looks the sums up; the copy waits for the GPU, the check for the copy."""
        check, copied = self.stream("check"), Dependency(out.first + self.stream("copy"))
        for layer in self._brought(part.layer):
            for home, sizes in self._layers[layer].items():
                out.spend(self._lookup_s * len(sizes))
                out.stage(self, sizes, home, layer=layer, after=out.on_gpu())
                time = round(1e12 * sum(sizes) / self._rate)
                number = out.add("compute", check, fixed=time, label="check", after=(copied,))
                if layer == part.layer:
                    out.await_(check, number)
                else:
                    out.promise(layer, check, number)

    def holds(self) -> Iterator[Held]:
        """Yield room on the GPU for the layer that is computed and the next one."""
        largest = max(sum(map(sum, one.values())) for one in self._layers)
        yield Held("hbm", "layers on their way", 2 * largest, kind="staging")


@register
class CheckedLayers(HookedStrategy):
    """Layers in pinned memory whose bytes the GPU checks."""

    kind: Literal["checked_layers"] = "checked_layers"
    check_rate: Annotated[float, Field(gt=0)] = 1e12
    """[B/s] at which the GPU checks."""
    lookup_s: Annotated[float, Field(ge=0)] = 1e-6
    """[s] of the host thread to look up the sum of a tensor."""

    def homes(self, model: ModelShape, machine: Machine) -> Homes:
        return Homes(model, lambda layer, _: Home("dram", pinned=True) if layer >= 0 else HBM)

    def hooks(self, plan: HookedPlan, forward: ForwardPass) -> tuple[Checked]:
        return (Checked(plan.homes, self.check_rate, self.lookup_s),)


if __name__ == "__main__":
    raise SystemExit(main())
