"""The result of a scenario: the part that is common to all kinds of work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from simoffload.brief import brief, named_values
from simoffload.results.capacity import TierUse
from simoffload.results.metrics import Metric, Passes, WithMetrics, by_name, registered
from simoffload.results.passes import PassResult, largest_remainder
from simoffload.results.timeline import PassWork, Timeline

if TYPE_CHECKING:
    import pandas as pd

    from simoffload.hardware import InputSource

# -- the inputs and versions from which a result was computed --------------------------------------


@dataclass(frozen=True)
class ResultProvenance:
    """ResultProvenance lists the inputs and versions from which a result was computed."""

    __repr__ = brief

    scenario: dict[str, Any]
    """The scenario as read, with all overrides."""
    profiles: tuple[tuple[str, str, str], ...]
    """(kind, id, sha256) of every profile used."""
    inputs: tuple[tuple[str, str, str, str, str, str, str], ...]
    """(profile, key, value, origin, source, date, spread) of every number used."""
    versions: dict[str, str]
    exports: dict[str, Any] = field(default_factory=dict)
    """Configuration files with which the real program runs what was simulated; content by name."""
    sources: Mapping[str, InputSource] = field(default_factory=dict)
    """What the inputs that decide times rest on, by what they decide; those of storage by tier; empty without
    times."""
    program: str = ""
    """Program and version for which the configuration files are written, such as "DeepSpeed 0.19.8"."""

    @property
    def origins(self) -> dict[str, int]:
        """Number of inputs by origin: spec, measured, estimate."""
        counts: dict[str, int] = {}
        for _, _, _, origin, *_ in self.inputs:
            counts[origin] = counts.get(origin, 0) + 1
        return counts

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; of the inputs, only their number by origin."""
        profiles = [dict(zip(("kind", "id", "sha256"), use, strict=True)) for use in self.profiles]
        return {
            "scenario": self.scenario,
            "profiles": profiles,
            **by_name(self, "origins versions"),
            "exports": self.exports,
        }


# -- what is known of the quality of answers that fewer bits change --------------------------------
# A few words each, with their source.
#
# simoffload predicts times, not answers. The words repeat what each source reports for its own models and
# tasks; none is a figure of ours. Sources: Kurtic et al., arXiv 2411.02355 (fp8 and 4-bit integers of Llama
# 3.1); Hu et al., LoRA, arXiv 2106.09685; Dettmers et al., LLM.int8(), arXiv 2208.07339, QLoRA, arXiv
# 2305.14314, and 8-bit optimizers, arXiv 2110.02861; Sheng et al., FlexGen, arXiv 2303.06865; SGLang's
# documentation of its quantized cache; Hugging Face's blog on quantization of the cache (May 2024).


ADAPTERS = "on par with training all weights in its authors' tests (arXiv 2106.09685)"
"""Published quality of LoRA adapters."""
STATES_8BIT = "8-bit states matched those of 32 bit in published runs (arXiv 2110.02861)"
"""Published quality of optimizers with 8-bit states."""
FROZEN_NF4 = "matched 16-bit LoRA in published tests (arXiv 2305.14314)"
"""Published quality of frozen weights in NF4."""
HALVED = "each value is rounded to 8 significant bits"
"""Word on bfloat16 in place of float32."""
FLEXGEN_4BIT = "a negligible loss in its authors' tests (arXiv 2303.06865)"
"""Word on FlexGen's 4 bits."""
_TEST_IT = "no published test is known to simoffload: compare answers on your own task"

_WEIGHTS = {
    "fp8": "effectively lossless in published tests (arXiv 2411.02355)",
    "int8": "no loss in its authors' tests (arXiv 2208.07339)",
    "int8-g": "more accurate than 4 bits, which rival 8 in published tests (arXiv 2411.02355)",
    "int4-g": "rivals 8 bits in published tests if well calibrated (arXiv 2411.02355)",
    "nf4": FROZEN_NF4,
}
"""Words on weights by the beginnings of names of formats."""
_CACHES = {
    "fp8": "a minimal loss according to SGLang's documentation; calibrated scales are better",
    "int4": "almost as good as 16 bits in Hugging Face's tests",
    "4 bits": FLEXGEN_4BIT,
    "int2": "worse than 16 bits in Hugging Face's tests",
}


def quality_of_weights(name: str) -> str:
    """Return what is known of weights stored in a format."""
    known = (start for start in _WEIGHTS if name.startswith(start))
    return _WEIGHTS.get(max(known, key=len, default=""), _TEST_IT)


def quality_of_cache(name: str | None) -> str:
    """Return what is known of a key-value cache stored in a format; None is the model's data type."""
    return f"cache: {_CACHES.get(name, _TEST_IT)}" if name else "cache: as the model computes it"


# -- the result of a scenario ----------------------------------------------------------------------


SCHEMA = "simoffload/result/1"


@dataclass(frozen=True, kw_only=True, repr=False)
class SimulationResult(WithMetrics, ABC):
    """A SimulationResult has the capacity, speed, causes and provenance of one scenario; without speed if it
    does not fit."""

    kind: ClassVar[str]
    """Kind of workload: "inference", "training" or "checkpoint"."""
    unit: ClassVar[str] = "token"
    """Unit of work in comparisons, such as "token"."""
    unit_by: ClassVar[str] = "per_token_s"
    """Name of the metric that is ``unit_s``."""
    offered: ClassVar[tuple[str, ...]] = ()
    """Names of its metrics that Tab offers beside what all results have."""

    name: str
    model: str
    parameters: int
    dtype: str
    platform: str
    target: str
    """Tier that holds the weights."""
    ranks: int
    """Number of processes of the run."""
    gpus: int
    """Number of GPUs that the processes use."""
    replicas: int
    """Number of data-parallel replicas, each of which processes ``batch_size`` sequences."""
    capacity: tuple[TierUse, ...]
    advice: tuple[str, ...]
    """Sentences about tiers that are too small, and what would help; empty if it fits."""
    warnings: tuple[str, ...]
    provenance: ResultProvenance
    placement_name: str = ""
    """Name of the placement if the tier of the weights does not identify it, such as "resident"."""
    placement_words: str = ""
    """Phrase for that placement of {} in sentences, such as "a whole copy of {} in each GPU"."""
    asked: str = field(default="", compare=False)
    """Name of the metric, of results or of costs, by which whoever asked judges it; "": the usual one."""
    label: str = field(default="", compare=False)
    """Name in comparisons, given by who compares; "": the shortest one that distinguishes the result."""
    settings: str = field(default="", compare=False)
    """The free settings that were found for it in a comparison of offers, as text."""
    superseded: bool = field(default=False, compare=False)
    """Whether another result of the comparison is of the same offer, at its best free settings."""
    extrapolations: tuple[str, ...] = ()
    """Descriptions of numbers that are used outside the range in which they were measured."""
    evidence: str = ""
    """Group of real runs whose errors count, if the settings do not decide it."""
    uncompared: tuple[str, ...] = ()
    """What no real run of the same program did, each to follow the words "no real run"."""
    refused: tuple[str, ...] = ()
    """Reasons why DeepSpeed or the strategy refuses the scenario, which then has neither capacity nor
    time."""
    timelines: dict[str, Timeline] = field(default_factory=dict, repr=False, compare=False)
    """Recorded passes by name, if recording was requested."""
    work: tuple[PassWork, ...] = field(default=(), compare=False)
    """How each pass was simulated, which does not affect the result."""
    added: Mapping[str, Any] = field(default_factory=dict)
    """What extensions add to the run, by name."""

    @property
    @abstractmethod
    def spent(self) -> Passes:
        """Passes that represent the work, with the time [s] of each in a generation, a step or a checkpoint.

        All decode steps are represented by the first one that was simulated. Empty if the scenario does not
        fit.
        """

    @property
    def drive_lifetime(self) -> tuple[Any, ...]:
        """Lifetime of the drives to which the run writes, by tier."""
        found: tuple[Any, ...] = self.added.get("drive_lifetime", ())
        return found

    @property
    def others(self) -> tuple[str, ...]:
        """Names of further metrics that a verdict names where they order results otherwise."""
        return ()

    @property
    def in_gpus(self) -> bool:
        """Whether the weights are in the memory of the GPUs."""
        return any(use.row.is_gpu for use in self.capacity if use.tier == self.targets[0])

    @property
    def targets(self) -> tuple[str, ...]:
        """Tiers of the weights (or checkpoints) and of the optimizer."""
        return (self.target,)

    @cached_property
    def composed(self) -> Mapping[str, Passes]:
        """Passes of which each predicted time or rate consists, by metric; empty if it does not fit."""
        found = {name: one.of(self) for name, one in self.declared.items() if one.of is not None}
        return {name: passes for name, passes in found.items() if passes}

    @property
    def tokens(self) -> int | None:
        """Number of tokens of the work in ``spent``; None if it has none."""
        return None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths [tokens] of the sequences, as in the workload."""
        return ()

    @property
    @abstractmethod
    def workload(self) -> dict[str, Any]:
        """Workload of the scenario, as plain values."""

    @property
    @abstractmethod
    def step(self) -> PassResult | None:
        """Pass that represents the run; None if it does not fit."""

    @property
    @abstractmethod
    def passes(self) -> tuple[PassResult, ...]:
        """Every pass that was simulated, in order."""

    @property
    def step_by(self) -> str:
        """Name of the metric that is ``step_time_s``."""
        return self.usual_by

    @property
    def latency_by(self) -> str:
        """Name of the time that one sequence, update or checkpoint takes in all."""
        return self.step_by

    @property
    def step_metric(self) -> Metric:
        """Metric whose value is ``step_time_s``."""
        return self.declared[self.step_by]

    @property
    def step_time_s(self) -> float | None:
        """[s] of a step: the pass for one token of each sequence, one update of the weights, or a
        checkpoint."""
        return self.metrics()[self.step_by]

    @property
    def unit_s(self) -> float | None:
        """Time [s] per ``unit`` of all work that is done in parallel, 1 / throughput, by which changes are
        compared."""
        return self.metrics()[self.unit_by]

    @property
    def usual_by(self) -> str:
        """Name of the time by which results are compared unless another metric is ``asked`` for."""
        return "per_token_s"

    @property
    def usual_metric(self) -> str:
        """Name of the metric in which people read that comparison."""
        return self.step_by

    @property
    def compared_metric(self) -> Metric:
        """Metric by which verdicts, orders, ties and charts compare results: the one that is asked for, or
        else the usual one of the kind of work."""
        return self.declared.get(self.asked, self.declared[self.usual_metric])

    @property
    def compared_by(self) -> str:
        """Name of the metric whose error is that of the comparison, one of ``declared``: of costs, which are
        proportional to a time, that of the time."""
        asked = self.declared.get(self.asked)
        return self.asked if asked is not None and asked.of is not None else self.usual_by

    @property
    def compared_s(self) -> float | None:
        """Number by which results are compared, the smallest is the best; None if it does not fit.

        Unless another metric is asked for, it is a time [s] per unit of work. Of a rate it is 1 / rate.
        """
        if not self.asked:
            return self.metrics()[self.usual_by]
        value = self.value_of(self.asked)
        return 1 / value if value and self.compared_metric.larger else value

    def value_of(self, name: str) -> float | None:
        """Return the value of a metric; None without one."""
        return self.metrics().get(name)

    def written(self, metric: Metric) -> str:
        """Return the value of a metric with its unit: "8.41 J", "0.5 USD"."""
        return metric.text(self.value_of(metric.name) or 0.0)

    @property
    def fits(self) -> bool:
        """Whether every tier is large enough and the scenario is not refused."""
        return not self.refused and all(use.fits for use in self.capacity)

    @property
    def shortfall(self) -> str:
        """Reason such as "does not fit: …" or "refused: …"; "" if it fits."""
        if self.refused:
            return f"refused: {'; '.join(self.refused)}"
        return "" if self.fits else f"does not fit: {'; '.join(self.advice)}"

    @property
    def bottleneck(self) -> str | None:
        """Cause that takes the largest part of the time of ``step``."""
        return self.step.bottleneck.cause_text if self.step else None

    @property
    def limit(self) -> str | None:
        """What limits the bottleneck: a saturated link, or the latency of each transfer; "" for work of fixed
        duration."""
        return self.step.bottleneck.limit if self.step else None

    @property
    def bottleneck_share(self) -> float | None:
        """Fraction of the step that the bottleneck takes."""
        return self.step.bottleneck.exposed_s / self.step.time_s if self.step else None

    @property
    def bound_fraction(self) -> float | None:
        """Lower bound of the step's time divided by its time."""
        return self.step.bound_s / self.step.time_s if self.step else None

    def metrics(self) -> dict[str, float | None]:
        """Return all metrics by name [s], [1/s], as ``formulas`` explains them; None for those without a
        value."""
        return super().metrics()

    def valued(self) -> Iterator[tuple[Metric, float]]:
        """Yield the metrics for people that have a value, each with it."""
        found = ((self.declared[name], value) for name, value in self.metrics().items())
        yield from ((one, value) for one, value in found if value is not None and one.is_listed)

    def formulas(self) -> dict[str, str]:
        """Return how each metric is computed, with the words of the strategy."""
        return {name: one.formula.format(result=self) for name, one in self.declared.items()}

    def __repr__(self) -> str:
        return named_values(self, by_name(self, "name model platform target fits") | self.metrics())

    def __dir__(self) -> list[str]:
        """Return the names that a user wants, for completion; all others work, too."""
        internal = (name for name in super().__dir__() if name.startswith("_"))
        own = (name for kind, name in registered if isinstance(self, kind))
        return [*internal, *_OFFERED, *self.offered, *own]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON; bytes and seconds are numbers."""
        return {
            "schema": SCHEMA,
            **by_name(self, "name"),
            "model": by_name(self, "name=model parameters dtype"),
            **by_name(self, "platform target ranks gpus replicas workload fits refused"),
            "capacity": [use.to_dict() for use in self.capacity],
            **by_name(self, "advice"),
            "changes": None,
            "changes_tried": [],
            "metrics": self.metrics(),
            "compared_metric": self.asked or self.usual_metric,
            "formulas": self.formulas(),
            "step": self._step(),
            "passes": [_pass(one) for one in self.passes],
            **self.particulars(),
            "engine": [_worked(one) for one in self.work],
            **by_name(self, "warnings extrapolations provenance"),
        }

    def particulars(self) -> dict[str, Any]:
        """Return the values that only this kind of result has, as plain values."""
        return {}

    def _step(self) -> dict[str, Any] | None:
        if self.step is None:
            return None
        return {
            "pass": self.step.name,
            **attributed(self.step),
            **by_name(self, "bottleneck bottleneck_share limit"),
            **by_name(self.step, "bound_s bound_by"),
            **by_name(self, "bound_fraction"),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return one row per simulated pass and cause: pass, context, cause, group, exposed_s, busy_s,
        limit, size [B]."""
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


_OFFERED = (
    *("bottleneck", "capacity", "fits", "metrics", "model", "name", "passes", "platform", "shortfall"),
    *("step", "to_dict", "to_frame"),
)


def _worked(one: PassWork) -> dict[str, Any]:
    return {
        **by_name(one, "pass=name operations operations_run=run"),
        "skipped_periods": [by_name(jump, "block=name period times") for jump in one.how.skipped],
        **by_name(one.how, "separate_ranks not_steady"),
    }


def attributed(one: PassResult) -> dict[str, Any]:
    """Return the time of a pass by cause, as plain values.

    ``time_ps`` and ``exposed_ps`` are whole numbers that sum exactly; fractions of a picosecond, which occur
    if a part does not happen in every step, are rounded with the largest-remainder method.
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
            by_name(each, "group exposed_s hidden_s") | {"exposed_ps": of_group[each.group]}
            for each in one.groups
        ],
    }


def _causes(one: PassResult) -> list[dict[str, Any]]:
    exposed = largest_remainder([share.exposed_ps for share in one.shares])
    return [
        by_name(share, "cause=cause_text group exposed_s busy_s limit size") | {"exposed_ps": time}
        for share, time in zip(one.shares, exposed, strict=True)
    ]


def _pass(one: PassResult) -> dict[str, Any]:
    return {
        **by_name(one, "name new_tokens context"),
        **attributed(one),
        "links": [use.to_dict() for use in one.links],
        **by_name(one, "streams bounds_s=bounds"),
    }
