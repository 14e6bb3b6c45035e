"""How often a token is sent to each expert, and how many experts the tokens of a pass need together.

A token chooses a fixed number of different experts. An expert's probability of being among them is its share
of all choices; tokens choose independently of each other and alike in all layers. The mean number of experts
that at least one of n tokens chooses is then the sum of 1 − (1 − p)^n over the experts, however the choices
of one token depend on each other.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Annotated, Self

from pydantic import Field, model_validator

from simoffload.bisection import first_that_holds
from simoffload.documents import Frozen

_ZIPF = 0.76
"""Exponent by default: the mean of those that two steps of llama.cpp on a DGX Spark (273 GB/s) need.

Read at 85 % of that rate, a decode step of 8 sequences leaves room for 24 of gpt-oss-120b's 128 experts in
each layer (146.65 tokens/s), and for 42.6 of Qwen3-30B-A3B's in Q8_0: 8 / 154.91 s times 232 GB/s is
11.98 GB, less 1.31 GB of other weights and 0.42 GB of cache, in 48 layers of 5.01 MB an expert. Even routing
would take 28.7 and 51.6. The exponents are 0.80 and 0.72. Source: benches/dgx-spark.md of ggml-org/llama.cpp
at 4c7e9893 (the published rows lcpp-spark-g120-b8 and lcpp-spark-q30-b8). The benchmark feeds random tokens;
those of a text may be routed otherwise.
"""


class Routing(Frozen):
    """A Routing states how unevenly tokens are routed to the experts of each layer: by ``zipf`` or by
    ``frequencies``."""

    zipf: Annotated[float, Field(ge=0, le=10)] | None = None
    """Exponent s: the expert of rank r is chosen in proportion to r^-s; 0 is even."""
    frequencies: tuple[Annotated[float, Field(ge=0, le=1e18)], ...] | None = None
    """Frequency with which each expert is chosen, in any unit, such as counts of a measured histogram."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.zipf is None) == (self.frequencies is None):
            raise ValueError('give one of "zipf" and "frequencies"')
        return self

    def problem(self, experts: int, chosen: int) -> str | None:
        """Return what is wrong with the routing for a model; None if it applies."""
        if not experts:
            return "the model has no experts"
        if self.frequencies is None:
            return None
        if len(self.frequencies) != experts:
            return f"{len(self.frequencies)} frequencies for {experts} experts; give one for each expert"
        if sum(one > 0 for one in self.frequencies) < chosen:
            return f"fewer experts than the {chosen} of each token have a frequency above 0"
        return None

    def probabilities(self, experts: int, chosen: int) -> tuple[float, ...]:
        """Return each expert's probability of being among the ``chosen`` of a token, the largest first."""
        if self.frequencies is not None:
            return _inclusion(tuple(sorted(self.frequencies, reverse=True)), chosen)
        return _inclusion(_zipf(float(self.zipf or 0), experts), chosen)


EVEN = Routing(zipf=0.0)
"""Every expert as often as the others."""
DEFAULT = Routing(zipf=_ZIPF)


@lru_cache(maxsize=64)
def _zipf(exponent: float, experts: int) -> tuple[float, ...]:
    """Return how often experts are chosen by Zipf's law, relative to the first."""
    return tuple([(rank + 1) ** -exponent for rank in range(experts)])


@lru_cache(maxsize=64)
def _inclusion(weights: tuple[float, ...], chosen: int) -> tuple[float, ...]:
    """Return probabilities in proportion to falling ``weights``, at most 1, with the sum ``chosen``."""

    def shares(certain: int) -> bool:
        """Return whether no weight after the first ``certain`` is chosen by every token; if so, nor is any
        after more."""
        return weights[certain] * (chosen - certain) <= sum(weights[certain:])

    found = first_that_holds(range(chosen), shares)
    certain = chosen if found is None else found
    rest = sum(weights[certain:])
    scale = (chosen - certain) / rest if rest else 0.0
    return (*([1.0] * certain), *(scale * weight for weight in weights[certain:]))


@lru_cache(maxsize=256)
def touched_share(probabilities: tuple[float, ...], tokens: int) -> float:
    """Return the mean part of the experts that at least one of ``tokens`` tokens chooses."""
    counts = Counter(probabilities)
    total = len(probabilities)
    return sum(times / total * (1.0 - (1.0 - chance) ** tokens) for chance, times in counts.items())
