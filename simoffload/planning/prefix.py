"""A prefix in the key-value cache of another tier: whether to load it or compute it, and how fast is fast
enough."""

from __future__ import annotations

from dataclasses import dataclass
from math import nextafter
from typing import Any, cast

from simoffload.documents import Edit
from simoffload.planning.cache_speed import CacheSpeed, FasterCache
from simoffload.planning.evaluator import Evaluator
from simoffload.results import InferenceResult, by_name
from simoffload.scenario import ScenarioSource, loaded
from simoffload.strategies import Phase
from simoffload.units import format_bytes, format_number, format_rate, format_seconds


@dataclass(frozen=True, kw_only=True)
class PrefixLoading:
    """PrefixLoading states what the tier of a prefix means for the time to first token."""

    tier: str
    size: int
    """Blocks of the prefixes that are loaded [B], of all GPUs."""
    computed_s: float
    """Time to first token [s] if the whole prompt is computed."""
    stored_s: float
    """Time to first token [s] if they are loaded and new blocks are stored as in the scenario; all other
    times and rates are without stores."""
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
        found = (first, f"{own}; {even}; {self.speed.no_longer_shows}")
        now, then = format_seconds(self.loaded_s), format_seconds(self.stored_s)
        if now == then:
            return found
        return *found, f"this is without stores: with them, the first token comes after {then}, not {now}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        speed = by_name(self.speed, "rate limit fastest_s enough link=links")
        return by_name(self, "tier size loaded_s computed_s stored_s break_even loads sentences") | speed


def prefix_loading(scenario: ScenarioSource, *, evaluator: Evaluator | None = None) -> PrefixLoading | None:
    """Return whether loading the prefixes of a scenario is faster than computing them, and from which rate
    their tier no longer shows; None for a scenario that loads none.

    Both ways are simulated, without stores of new blocks: who computes a prefix has more to store, which a
    slower tier would make more expensive than loading. The rate is that at which each host loads blocks,
    whatever their path, so that it can be more than its links carry. Raises InputError where the scenario
    does not fit, and what ``simulate`` raises.
    """
    evaluator = evaluator or Evaluator(loaded(scenario))
    result, _ = evaluator.timed()
    if not isinstance(result, InferenceResult) or result.load is None:
        return None
    stored_s, key = result.ttft_s, "strategy.kv_cache.connector"
    phases = (one for one in evaluator.plan.phases if isinstance(one, Phase))
    if any(one.kind == "prefill" and one.ends_with for one in phases):  # the pass stores blocks
        evaluator = Evaluator(evaluator.edited(Edit.at(f"{key}.store", False)))
    _, other = evaluator.answer(Edit.at(f"{key}.prefix", 0))
    computed_s, faster = cast("InferenceResult", other).ttft_s, FasterCache.of(evaluator)
    assert computed_s is not None
    assert stored_s is not None
    if faster is None:
        return None
    blocks = next(one for one in result.traffic if one.read)
    return PrefixLoading(
        tier=blocks.tier,
        size=blocks.read,
        computed_s=computed_s,
        stored_s=stored_s,
        break_even=faster.least(nextafter(computed_s, 0.0)),
        speed=faster.speed(),
    )
