"""The answer to a scenario: what all kinds of work have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from simoffload.results.capacity import Change, Remedies, TierUse
from simoffload.results.passes import PassResult, largest_remainder
from simoffload.results.planner import Planner
from simoffload.results.timeline import PassWork, Timeline

if TYPE_CHECKING:
    import pandas as pd

    from simoffload.planning.advise.evaluate import Advice
    from simoffload.planning.confidence import Confidence
    from simoffload.planning.costs.economics import Economics
    from simoffload.planning.explanation import Explanation

__all__ = ["ResultProvenance", "SimulationResult", "attributed"]

SCHEMA = "simoffload/result/1"


@dataclass(frozen=True)
class ResultProvenance:
    """What the answer was computed from."""

    scenario: dict[str, Any]
    """The scenario as read, with all overrides."""
    profiles: tuple[tuple[str, str, str], ...]
    """(kind, id, sha256) of every profile used."""
    inputs: tuple[tuple[str, str, str, str, str, str], ...]
    """(profile, key, value, origin, source, date) of every number used."""
    versions: dict[str, str]
    exports: dict[str, Any] = field(default_factory=dict)
    """Configuration files with which real programs do what was simulated, content by name."""
    program: str = ""
    """Program and version that the configuration files are for, such as "DeepSpeed 0.19.8"."""

    @property
    def origins(self) -> dict[str, int]:
        """How many inputs are spec, measured, estimate."""
        counts: dict[str, int] = {}
        for _, _, _, origin, _, _ in self.inputs:
            counts[origin] = counts.get(origin, 0) + 1
        return counts


@dataclass(frozen=True, kw_only=True)
class SimulationResult(ABC):
    """Capacity, speed, causes and provenance of one scenario; speed is None where it does not fit."""

    formulas: ClassVar[Mapping[str, str]]
    """Metric names and how each is computed."""
    optional: ClassVar[frozenset[str]] = frozenset()
    """Metrics that are left out where they have no value."""
    unit: ClassVar[str] = "token"
    """What is made, in the words of a comparison."""

    name: str
    model: str
    parameters: int
    dtype: str
    platform: str
    target: str
    """Tier that holds the weights."""
    ranks: int
    """Processes."""
    gpus: int
    """GPUs that they use."""
    replicas: int
    """Parts of the work side by side, each with ``batch_size`` sequences."""
    capacity: tuple[TierUse, ...]
    advice: tuple[str, ...]
    """What lacks and what to do about it; empty when it fits."""
    warnings: tuple[str, ...]
    provenance: ResultProvenance
    placement_name: str = ""
    """Name of the placement of the weights where the tier alone would be ambiguous, such as "resident"."""
    extrapolations: tuple[str, ...] = ()
    """Describe what is outside the range in which the machine was measured."""
    refused: tuple[str, ...] = ()
    """Why DeepSpeed or the strategy would not do it at all, so that there is neither capacity nor time."""
    timelines: dict[str, Timeline] = field(default_factory=dict, repr=False, compare=False)
    """Recorded passes by name, where asked for."""
    work: tuple[PassWork, ...] = field(default=(), compare=False)
    """How each pass was simulated; the answer does not depend on it."""
    planner: Planner | None = field(default=None, repr=False, compare=False)
    """Who is asked for ``remedies``, ``costs`` and the like; None: they are None."""

    @property
    @abstractmethod
    def workload(self) -> dict[str, Any]:
        """What was done, in the words of the scenario."""

    @property
    @abstractmethod
    def step(self) -> PassResult | None:
        """The pass that stands for the run; None where it does not fit."""

    @property
    @abstractmethod
    def passes(self) -> tuple[PassResult, ...]:
        """Every pass that was simulated, in order."""

    @property
    @abstractmethod
    def step_time_s(self) -> float | None:
        """[s] of a step: a pass that makes one token of each sequence, an update of the weights."""

    @property
    @abstractmethod
    def per_token_s(self) -> float | None:
        """Time over the tokens of all sequences [s], 1 / throughput; None for work that makes none."""

    @property
    def unit_s(self) -> float | None:
        """[s] for one ``unit`` of all that is made at once: 1 / throughput, by which changes are rated."""
        return self.per_token_s

    @property
    def compared_by(self) -> str:
        """Name of the time by which results are compared, one of ``formulas``."""
        return "per_token_s"

    @property
    def compared_s(self) -> float | None:
        """[s], the time named by ``compared_by``; None where it does not fit."""
        return self.metrics()[self.compared_by]

    @property
    def fits(self) -> bool:
        """Whether every tier is large enough for it, and nothing refuses it."""
        return not self.refused and all(use.fits for use in self.capacity)

    @cached_property
    def remedies(self) -> Remedies | None:
        """The smallest changes that make it fit, searched for when first asked; None where it fits."""
        if self.planner is None or self.fits or self.refused:
            return None
        return self.planner.remedies(self)

    @cached_property
    def costs(self) -> Economics | None:
        """Bill, power, energy and cost, worked out when first asked; None where nothing was simulated."""
        return None if self.planner is None or self.refused else self.planner.costs(self)

    @cached_property
    def confidence(self) -> Confidence | None:
        """The error to expect of its times; None where it has none."""
        return None if self.planner is None or self.step is None else self.planner.confidence(self)

    @cached_property
    def explanation(self) -> Explanation | None:
        """Sensitivity, predicted range and storage bandwidth; None without times or if not asked for."""
        return None if self.planner is None or self.step is None else self.planner.explanation(self)

    @cached_property
    def next_changes(self) -> Advice | None:
        """Changes that were simulated, ranked by what they gain; None as of ``explanation``."""
        return None if self.planner is None or self.step is None else self.planner.next_changes(self)

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """The warnings, and what would make it fit and cannot be."""
        return (*self.warnings, *(self.remedies.barred if self.remedies else ()))

    @property
    def shortfall(self) -> str:
        """ "does not fit: …" or "refused: …"; empty where it fits."""
        if self.refused:
            return f"refused: {'; '.join(self.refused)}"
        return "" if self.fits else f"does not fit: {'; '.join(self.advice)}"

    @property
    def bottleneck(self) -> str | None:
        """What most of a step's time is spent on."""
        return self.step.bottleneck.cause if self.step else None

    @property
    def limit(self) -> str | None:
        """What limits the bottleneck: a full link, the latency of each transfer; empty for plain work."""
        return self.step.bottleneck.limit if self.step else None

    @property
    def bottleneck_share(self) -> float | None:
        """Fraction of the step that the bottleneck takes."""
        return self.step.bottleneck.exposed_s / self.step.time_s if self.step else None

    @property
    def bound_fraction(self) -> float | None:
        """Fraction of the bound reached: the step's bound over its time."""
        return self.step.bound_s / self.step.time_s if self.step else None

    def metrics(self) -> dict[str, float | None]:
        """All metrics by name [s], [1/s]: see ``formulas``; None where there is no value."""
        found = {name: getattr(self, name) for name in self.formulas}
        return {
            name: value for name, value in found.items() if value is not None or name not in self.optional
        }

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: no planner, as machines and price lists stay where they are."""
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"planner": None}

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON; bytes and seconds are numbers.

        Remedies, confidence and costs are worked out for it, and explanations that were asked for.
        """
        costs, sure, remedies = self.costs, self.confidence, self.remedies
        explanation, advice = self.explanation, self.next_changes
        found = self.simulated()
        if remedies is not None:
            found["changes"] = [_change(one) for one in remedies.changes]
            found["changes_tried"] = list(remedies.tried)
            found["warnings"] = list(self.all_warnings)
        if costs is not None:
            found["confidence"] = sure.to_dict() if sure else None
            found["economics"] = costs.to_dict()
        if explanation is not None and advice is not None:
            found["explanation"] = explanation.to_dict()
            found["next"] = [one.to_dict() for one in advice.helping]
        return found

    def simulated(self) -> dict[str, Any]:
        """The same without what has to be worked out."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "model": {"name": self.model, "parameters": self.parameters, "dtype": self.dtype},
            "platform": self.platform,
            "target": self.target,
            "ranks": self.ranks,
            "gpus": self.gpus,
            "replicas": self.replicas,
            "workload": self.workload,
            "fits": self.fits,
            "refused": list(self.refused),
            "capacity": [_tier(use) for use in self.capacity],
            "advice": list(self.advice),
            "changes": None,
            "changes_tried": [],
            "metrics": self.metrics(),
            "formulas": dict(self.formulas),
            "step": self._step(),
            "passes": [_pass(one) for one in self.passes],
            **self.particulars(),
            "engine": [_worked(one) for one in self.work],
            "warnings": list(self.warnings),
            "extrapolations": list(self.extrapolations),
            "provenance": {
                "scenario": self.provenance.scenario,
                "profiles": [
                    dict(zip(("kind", "id", "sha256"), use, strict=True)) for use in self.provenance.profiles
                ],
                "origins": self.provenance.origins,
                "versions": self.provenance.versions,
                "exports": self.provenance.exports,
            },
        }

    def particulars(self) -> dict[str, Any]:
        """What only this kind of result says, as plain values."""
        return {}

    def _step(self) -> dict[str, Any] | None:
        if self.step is None:
            return None
        return {
            "pass": self.step.name,
            **attributed(self.step),
            "bottleneck": self.bottleneck,
            "bottleneck_share": self.bottleneck_share,
            "limit": self.limit,
            "bound_s": self.step.bound_s,
            "bound_by": self.step.bound_by,
            "bound_fraction": self.bound_fraction,
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per simulated pass and cause: pass, context, cause, group, exposed_s, busy_s, limit,
        size [B]."""
        import pandas as pd

        rows = [
            {"pass": one.name, "context": one.context, "time_s": one.time_s, **cause}
            for one in self.passes
            for cause in _causes(one)
        ]
        return pd.DataFrame(
            rows,
            columns=["pass", "context", "time_s", "cause", "group", "exposed_s", "busy_s", "limit", "size"],
        )


def _worked(one: PassWork) -> dict[str, Any]:
    jumps = [{"block": jump.name, "period": jump.period, "times": jump.times} for jump in one.how.jumps]
    return {
        "pass": one.name,
        "operations": one.operations,
        "operations_run": one.run,
        "jumps": jumps,
        "not_folded": one.how.not_folded,
        "not_jumped": list(one.how.not_jumped),
    }


def _tier(use: TierUse) -> dict[str, Any]:
    return {
        "tier": use.tier,
        "kind": use.kind,
        "scope": use.scope,
        "needed_bytes": use.needed,
        "steady_bytes": use.steady,
        "capacity_bytes": use.capacity,
        "headroom_bytes": use.headroom,
        "fits": use.fits,
        **({"stage": use.moment} if use.moment else {}),
        "terms": [{"name": term.name, "bytes": term.size, "pinned": term.pinned} for term in use.terms],
    }


def attributed(one: PassResult) -> dict[str, Any]:
    """Where the time of a pass went, as plain values.

    ``time_ps`` and every ``exposed_ps`` are whole numbers that sum exactly: where a part of a step is a
    fraction of a picosecond, by largest remainders.
    """
    causes = _causes(one)
    of_group: dict[str, int] = {}
    for cause in causes:
        of_group[cause["group"]] = of_group.get(cause["group"], 0) + cause["exposed_ps"]
    return {
        "time_s": one.time_s,
        "time_ps": round(one.time_ps),
        "time_by_cause": causes,
        "time_by_group": [
            {
                "group": each.group,
                "exposed_s": each.exposed_s,
                "hidden_s": each.hidden_s,
                "exposed_ps": of_group[each.group],
            }
            for each in one.groups
        ],
    }


def _causes(one: PassResult) -> list[dict[str, Any]]:
    return [
        {
            "cause": share.cause,
            "group": share.group,
            "exposed_s": share.exposed_s,
            "busy_s": share.busy_s,
            "limit": share.limit,
            "size": share.size,
            "exposed_ps": exposed,
        }
        for share, exposed in zip(
            one.shares, largest_remainder([share.exposed_ps for share in one.shares]), strict=True
        )
    ]


def _change(one: Change) -> dict[str, Any]:
    headroom = {use.tier: use.headroom for use in one.uses}
    return {
        "kind": one.kind,
        "description": one.description,
        "set": list(one.assignments),
        "headroom_bytes": headroom,
    }


def _pass(one: PassResult) -> dict[str, Any]:
    return {
        "name": one.name,
        "new_tokens": one.new_tokens,
        "context": one.context,
        **attributed(one),
        "links": [
            {
                "link": use.link,
                "bytes" if use.unit == "B" else "core_ns": use.size,
                "busy_s": use.busy_s,
                "saturated_s": use.saturated_s,
                "exposed_s": use.exposed_s,
            }
            for use in one.links
        ],
        "streams": [use._asdict() for use in one.streams],
        "bounds_s": one.bounds,
    }
