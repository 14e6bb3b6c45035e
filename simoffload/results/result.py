"""The answer to a scenario."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simoffload.results.capacity import TierUse
from simoffload.results.passes import PassResult
from simoffload.results.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FORMULAS", "Provenance", "SimulationResult"]

SCHEMA = "simoffload/result/1"

FORMULAS = {
    "ttft_s": "time of the prefill pass, trace recorded and weights in their tier (time to first token)",
    "first_pass_s": "time of the very first prefill after loading: DeepSpeed has no trace yet, no prefetch",
    "tpot_s": "sum of the decode steps / number of decode steps (time per output token)",
    "e2e_s": "ttft_s + sum of the decode steps",
    "tokens_per_s": "output_length x batch_size x ranks / e2e_s",
    "decode_tokens_per_s": "batch_size x ranks / tpot_s",
    "per_token_s": "e2e_s / (output_length x batch_size x ranks), the metric of transformers-bloom-inference",
}
"""Metric names and how each is computed."""


@dataclass(frozen=True)
class Provenance:
    """What the answer was computed from."""

    scenario: dict[str, Any]
    """The scenario as read, with all overrides."""
    profiles: tuple[tuple[str, str, str], ...]
    """(kind, id, sha256) of every profile used."""
    inputs: tuple[tuple[str, str, str, str, str, str], ...]
    """(profile, key, value, origin, source, date) of every number used."""
    versions: dict[str, str]

    @property
    def origins(self) -> dict[str, int]:
        """How many inputs are spec, measured, estimate."""
        counts: dict[str, int] = {}
        for _, _, _, origin, _, _ in self.inputs:
            counts[origin] = counts.get(origin, 0) + 1
        return counts


@dataclass(frozen=True)
class SimulationResult:
    """Capacity, speed, causes and provenance of one scenario; speed is None where it does not fit."""

    name: str
    model: str
    parameters: int
    dtype: str
    platform: str
    target: str
    """Tier that holds the weights."""
    ranks: int
    batch_size: int
    prompt_length: int
    output_length: int
    capacity: tuple[TierUse, ...]
    advice: tuple[str, ...]
    """What would make it fit; empty when it does."""
    warnings: tuple[str, ...]
    provenance: Provenance
    extrapolations: tuple[str, ...] = ()
    """What lies outside of the range in which the machine was measured."""
    prefill: PassResult | None = None
    first_pass: PassResult | None = None
    decode: tuple[PassResult, ...] = ()
    """The decode steps that were simulated, in order of context."""
    decode_total_s: float = 0.0
    """[s] of all decode steps."""
    decode_spread: float = 0.0
    """Relative distance of the middle decode step from the straight line between first and last, or of the
    last from the first where the middle was not simulated; 0 when every step was simulated."""
    timelines: dict[str, Timeline] = field(default_factory=dict, repr=False, compare=False)
    """Recorded passes by name, where asked for."""

    @property
    def fits(self) -> bool:
        """Whether every tier is large enough."""
        return all(use.fits for use in self.capacity)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token [s]: see FORMULAS."""
        return self.prefill.time_s if self.prefill else None

    @property
    def first_pass_s(self) -> float | None:
        """Time of the first pass after loading [s]: see FORMULAS."""
        return self.first_pass.time_s if self.first_pass else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token [s], None when only one token is generated: see FORMULAS."""
        return self.decode_total_s / (self.output_length - 1) if self.decode else None

    @property
    def e2e_s(self) -> float | None:
        """Time of one whole generation [s]."""
        return self.prefill.time_s + self.decode_total_s if self.prefill else None

    @property
    def tokens_per_s(self) -> float | None:
        """Generated tokens per second over all ranks: see FORMULAS."""
        return self.output_length * self.batch_size * self.ranks / self.e2e_s if self.e2e_s else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens per second of the decode steps over all ranks: see FORMULAS."""
        return self.batch_size * self.ranks / self.tpot_s if self.tpot_s else None

    @property
    def per_token_s(self) -> float | None:
        """Time per token over all streams [s]: see FORMULAS."""
        return 1 / self.tokens_per_s if self.tokens_per_s else None

    @property
    def step(self) -> PassResult | None:
        """The pass that stands for the run: the first decode step, or the prefill when there is none."""
        return self.decode[0] if self.decode else self.prefill

    @property
    def bottleneck(self) -> str | None:
        """What most of a step's time is spent on."""
        return self.step.bottleneck.cause if self.step else None

    @property
    def bottleneck_share(self) -> float | None:
        """Fraction of the step that the bottleneck takes."""
        return self.step.bottleneck.exposed_s / self.step.time_s if self.step else None

    @property
    def bound_fraction(self) -> float | None:
        """Fraction of the speed of light reached: the step's bound over its time."""
        return self.step.bound_s / self.step.time_s if self.step else None

    def metrics(self) -> dict[str, float | None]:
        """All metrics by name [s], [1/s]."""
        return {name: getattr(self, name) for name in FORMULAS}

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON; bytes and seconds are numbers."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "model": {"name": self.model, "parameters": self.parameters, "dtype": self.dtype},
            "platform": self.platform,
            "target": self.target,
            "ranks": self.ranks,
            "workload": {
                "batch_size": self.batch_size,
                "prompt_length": self.prompt_length,
                "output_length": self.output_length,
            },
            "fits": self.fits,
            "capacity": [_tier(use) for use in self.capacity],
            "advice": list(self.advice),
            "metrics": self.metrics(),
            "formulas": FORMULAS,
            "step": self._step(),
            "passes": [_pass(one) for one in (self.first_pass, self.prefill, *self.decode) if one],
            "decode_interpolation_residual": self.decode_spread,
            "warnings": list(self.warnings),
            "extrapolations": list(self.extrapolations),
            "provenance": {
                "scenario": self.provenance.scenario,
                "profiles": [
                    dict(zip(("kind", "id", "sha256"), use, strict=True)) for use in self.provenance.profiles
                ],
                "origins": self.provenance.origins,
                "versions": self.provenance.versions,
            },
        }

    def _step(self) -> dict[str, Any] | None:
        if self.step is None:
            return None
        return {
            "pass": self.step.name,
            "time_s": self.step.time_s,
            "bottleneck": self.bottleneck,
            "bottleneck_share": self.bottleneck_share,
            "limit": self.step.bottleneck.limit,
            "bound_s": self.step.bound_s,
            "bound_by": self.step.bound_by,
            "bound_fraction": self.bound_fraction,
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per simulated pass and cause: pass, context, cause, exposed_s, busy_s, limit, size [B]."""
        import pandas as pd

        rows = [
            {"pass": one.name, "context": one.context, "time_s": one.time_s, **share._asdict()}
            for one in (self.first_pass, self.prefill, *self.decode)
            if one
            for share in one.shares
        ]
        return pd.DataFrame(
            rows, columns=["pass", "context", "time_s", "cause", "exposed_s", "busy_s", "limit", "size"]
        )


def _tier(use: TierUse) -> dict[str, Any]:
    return {
        "tier": use.tier,
        "kind": use.kind,
        "scope": use.scope,
        "needed_bytes": use.needed,
        "capacity_bytes": use.capacity,
        "headroom_bytes": use.headroom,
        "fits": use.fits,
        "terms": [{"name": term.name, "bytes": term.size, "pinned": term.pinned} for term in use.terms],
    }


def _pass(one: PassResult) -> dict[str, Any]:
    return {
        "name": one.name,
        "new_tokens": one.new_tokens,
        "context": one.context,
        "time_s": one.time_s,
        "time_by_cause": [share._asdict() for share in one.shares],
        "links": [
            {
                "link": use.link,
                "bytes": use.size,
                "busy_s": use.busy_s,
                "saturated_s": use.saturated_s,
                "exposed_s": use.exposed_s,
            }
            for use in one.links
        ],
        "streams": [use._asdict() for use in one.streams],
        "bounds_s": one.bounds,
    }
