"""A program: layers in pinned memory, in pageable memory and on a drive, each brought two layers ahead.

``python three_tiers.py run three_tiers.yaml`` simulates it, and every other command knows it, too.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simoffload.cli import main
from simoffload.strategies.authoring import (
    HBM,
    ForwardPass,
    Home,
    Homes,
    HookedPlan,
    HookedStrategy,
    Machine,
    ModelShape,
    Module,
    Prefetched,
    register,
)

Count = Annotated[int, Field(strict=True, ge=0)]


@register
class ThreeTiers(HookedStrategy):
    """Layers in three tiers, brought to the GPU two layers ahead."""

    tier_keys: ClassVar = {"disk": "storage"}

    kind: Literal["three_tiers"] = "three_tiers"
    disk: str
    """Storage tier of the layers that are in no memory."""
    pinned: Count = 0
    """Number of the first layers, which are in pinned memory."""
    pageable: Count = 0
    """Number of the layers after them, which are in pageable memory."""

    def homes(self, model: ModelShape, machine: Machine) -> Homes:
        def place(layer: int, _module: Module) -> Home:
            if layer < 0:  # embedding and head
                return HBM
            if layer < self.pinned + self.pageable:
                return Home("dram", pinned=layer < self.pinned)
            return Home(self.disk)

        return Homes(model, place)

    def hooks(self, plan: HookedPlan, forward: ForwardPass) -> tuple[Prefetched]:
        return (Prefetched(plan.homes, ahead=2),)


if __name__ == "__main__":
    raise SystemExit(main())
