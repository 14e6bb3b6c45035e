"""A prefix in the key-value cache of another tier: whether to load it or compute it, and how fast is fast
enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from simoffload.documents import Edit
from simoffload.planning.cache_speed import CacheSpeed, FasterCache
from simoffload.planning.evaluator import Evaluator
from simoffload.results import InferenceResult, by_name
from simoffload.scenario import ScenarioSource, loaded
from simoffload.units import format_bytes, format_number, format_rate, format_seconds


@dataclass(frozen=True, kw_only=True)
class PrefixLoading:
    """PrefixLoading states what the tier of a prefix means for the time to first token."""

    tier: str
    size: int
    """Blocks of the prefixes that are loaded [B], of all GPUs."""
    computed_s: float
    """Time to first token [s] if the whole prompt is computed."""
    break_even: float
    """Lowest rate [B/s] of a host from which loading is faster than computing."""
    speed: CacheSpeed
    """How fast the tier is; its pass is the prefill, whose time is that to the first token."""

    @property
    def loaded_s(self) -> float:
        """Time to first token [s] if they are loaded."""
        return self.speed.time_s

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
        own = f"each host loads at {format_rate(self.speed.rate)}, limited by {self.speed.limit}"
        even = f"from {format_rate(self.break_even)} on loading is faster than computing"
        return first, f"{own}; {even}; {self.speed.no_longer_shows}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        speed = by_name(self.speed, "rate limit fastest_s enough link=links")
        return by_name(self, "tier size loaded_s computed_s break_even loads sentences") | speed


def prefix_loading(scenario: ScenarioSource, *, evaluator: Evaluator | None = None) -> PrefixLoading | None:
    """Return whether loading the prefixes of a scenario is faster than computing them, and from which rate
    their tier no longer shows; None for a scenario that loads none.

    Both ways are simulated. The rate is that at which each host loads blocks, whatever their path, so that it
    can be more than its links carry. Raises InputError where the scenario does not fit, and what ``simulate``
    raises.
    """
    evaluator = evaluator or Evaluator(loaded(scenario))
    result, _ = evaluator.timed()
    faster = FasterCache.of(evaluator)
    if faster is None or not isinstance(result, InferenceResult) or result.load is None:
        return None
    _, other = evaluator.answer(Edit.at("strategy.kv_cache.connector.prefix", 0))
    computed_s = cast("InferenceResult", other).ttft_s
    assert computed_s is not None
    return PrefixLoading(
        tier=result.traffic[0].tier,
        size=result.traffic[0].read,
        computed_s=computed_s,
        break_even=faster.least(lambda time: time < computed_s),
        speed=faster.speed(),
    )
