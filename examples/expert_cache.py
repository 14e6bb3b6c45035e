"""A program: experts on a drive, the most popular ones of each layer also in pinned memory.

``python expert_cache.py run expert_cache.yaml`` simulates it.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simoffload.cli import main
from simoffload.strategies import authoring as to

PINNED = to.Home("dram", pinned=True)


@to.register
class ExpertCache(to.HookedStrategy):
    """Experts that are brought when tokens have chosen them: from the cache, or from a drive."""

    tier_keys: ClassVar = {"disk": "storage"}

    kind: Literal["expert_cache"] = "expert_cache"
    disk: str
    """Storage tier of all experts."""
    cached: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of the experts of each layer that are in memory, too, the most popular first."""

    def homes(self, model: to.ModelShape, machine: to.Machine) -> to.Homes:
        if not model.num_experts:
            raise to.InputError.at("model", f"{model.name} has no experts")
        return to.Homes(model, lambda _, module: to.Home(self.disk) if module.share < 1 else to.HBM)

    def hooks(self, plan: to.HookedPlan, forward: to.ForwardPass) -> tuple["Chosen"]:
        return (Chosen(plan, self),)


class Chosen(to.Hook):
    """Bring the experts that the tokens of a pass have chosen, which the host has to see first."""

    streams, state = to.STAGING, to.Hook.of_modules

    def __init__(self, plan: to.HookedPlan, program: ExpertCache) -> None:
        model, self._homes, self._disk = plan.model, plan.homes, to.Home(program.disk)
        self._chances = model.routing.probabilities(model.num_experts, model.experts_per_token)
        self._cached = round(program.cached * model.num_experts)

    def before(self, call: to.Call, out: to.PassWriter) -> None:
        if call.module.share == 1 or not (size := sum(self._homes.sizes(call.module))):
            return
        out.host_waits(to.COMPUTE)  # for the choice of the router
        touched = [1 - (1 - chance) ** out.now.tokens for chance in self._chances]
        for home, part in (PINNED, touched[: self._cached]), (self._disk, touched[self._cached :]):
            out.stage(self, [size // len(touched)] * round(sum(part)), home, after=out.on_gpu())

    def holds(self) -> Iterator[to.Held]:
        layers = [sum(layer.get(self._disk, ())) for layer in self._homes.layers]
        size = sum(layers) * self._cached // len(self._chances)
        yield to.Held("dram", "cached experts", size, pinned=True, remedy="lower cached")
        yield to.Held("dram", "buffers of experts", 2 * max(layers), pinned=True, kind="staging")
        yield to.Held("hbm", "experts of a layer", max(layers), kind="staging")


if __name__ == "__main__":
    raise SystemExit(main())
