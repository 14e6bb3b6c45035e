"""A prefix in the key-value cache of another tier: whether to load it or compute it, and how fast is fast
enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, cast

from simoffload.documents import Edit
from simoffload.planning.evaluator import Evaluator
from simoffload.results import InferenceResult, by_name
from simoffload.scenario import ScenarioSource, loaded
from simoffload.simulation.runner import Runner
from simoffload.strategies import Phase
from simoffload.strategies.tensor_parallel import TensorParallelPlan
from simoffload.units import format_bytes, format_number, format_rate, format_seconds

_ENOUGH = 1.05
"""Time to first token relative to that with an infinitely fast tier from which the tier no longer shows: our
choice."""
_EXACTLY = 1.01
"""Ratio of both ends at which a bisection stops."""
_SLOWEST, _INFINITE = 10**6, 10**18
"""Rates [B/s] of the slowest tier that is tried, and of one that takes no time."""


@dataclass(frozen=True, kw_only=True)
class PrefixLoading:
    """PrefixLoading states what the tier of a prefix means for the time to first token."""

    tier: str
    size: int
    """Blocks of the prefixes that are loaded [B], of all GPUs."""
    rate: float
    """Rate [B/s] at which each host loads them."""
    loaded_s: float
    """Time to first token [s] if they are loaded."""
    computed_s: float
    """Time to first token [s] if the whole prompt is computed."""
    fastest_s: float
    """Time to first token [s] with an infinitely fast tier: the prefill of the rest."""
    enough: int
    """Lowest rate [B/s] of a host from which the time to first token is within 5 % of ``fastest_s``."""
    break_even: int
    """Lowest rate [B/s] of a host from which loading is faster than computing."""
    link: int
    """Rate [B/s] of the links between the GPUs in use of a host and its memory, added up."""

    @property
    def loads(self) -> bool:
        """Whether loading the prefix is faster than computing it."""
        return self.loaded_s < self.computed_s

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences about loading or computing, and about the rate of the tier."""
        ratio = max(self.loaded_s, self.computed_s) / min(self.loaded_s, self.computed_s)
        first = (
            f"{'loading' if self.loads else 'computing'} the prefix is {format_number(ratio)} times as fast: "
            f"the first token comes after {format_seconds(self.loaded_s)} with {format_bytes(self.size)} "
            f"loaded from {self.tier}, after {format_seconds(self.computed_s)} with all computed"
        )
        own = f"each host loads at {format_rate(self.rate)}"
        even = f"from {format_rate(self.break_even)} on loading is faster than computing"
        enough = f"from {format_rate(self.enough)} on the tier no longer shows (within 5 % of any faster one)"
        if self.enough > self.link:
            enough = f"{enough}, which is more than the {format_rate(self.link)} of the links of its GPUs"
        return first, f"{own}; {even}; {enough}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return by_name(
            self, "tier size rate loaded_s computed_s fastest_s enough break_even link loads sentences"
        )


def prefix_loading(scenario: ScenarioSource, *, evaluator: Evaluator | None = None) -> PrefixLoading | None:
    """Return whether loading the prefixes of a scenario is faster than computing them, and from which rate
    their tier no longer shows; None for a scenario that loads none.

    Both ways are simulated. The rate is that at which each host loads blocks, whatever their path, so that it
    can be more than its links carry. Raises InputError where the scenario does not fit, and what ``simulate``
    raises.
    """
    evaluator = evaluator or Evaluator(loaded(scenario))
    result, _ = evaluator.timed()
    if not isinstance(result, InferenceResult) or result.load is None:
        return None
    key = "strategy.kv_cache.connector.prefix"
    _, other = evaluator.answer(Edit.at(key, 0))
    plan, computed = cast("TensorParallelPlan", evaluator.plan), cast("InferenceResult", other)
    runner = Runner(evaluator.scenario, keep=False, progress=None)

    def ttft_s(rate: int) -> float:
        changed = replace(plan, tier_rate=rate)
        prefill = next(one for one in changed.phases if isinstance(one, Phase) and one.kind == "prefill")
        return runner.phase(prefill, {}).time_s

    machine, (traffic,) = evaluator.scenario.machine, result.traffic
    fastest, hosts = ttft_s(_INFINITE), machine.nodes_of(result.gpus)
    loaded_s, computed_s = result.ttft_s, computed.ttft_s
    assert loaded_s is not None
    assert computed_s is not None
    slots = machine.topology.gpu_pcie_links[: machine.ranks_per_node(result.gpus)]
    links = (slot.pcie.copy_curve(to_device=True, lanes=slot.lanes).points[-1][1] for slot in slots)
    return PrefixLoading(
        tier=traffic.tier,
        size=traffic.read,
        rate=traffic.read / hosts / result.load.time_s,
        loaded_s=loaded_s,
        computed_s=computed_s,
        fastest_s=fastest,
        enough=_least(lambda rate: ttft_s(rate) <= _ENOUGH * fastest),
        break_even=_least(lambda rate: ttft_s(rate) < computed_s),
        link=int(sum(links)),
    )


def _least(holds: Callable[[int], bool]) -> int:
    """Return the lowest rate [B/s] for which a condition holds that goes on to hold for higher ones."""
    low, high = float(_SLOWEST), float(_INFINITE)
    while high / low > _EXACTLY:
        middle = sqrt(low * high)
        low, high = (low, middle) if holds(int(middle)) else (middle, high)
    return int(high)
