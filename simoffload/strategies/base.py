"""Strategies and plans: a strategy turns a model, a workload and a machine into a plan of memory and phases.

A strategy is one class in one file, registered by ``registry.register``, to which no other code refers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_origin

from pydantic import BaseModel, Field

from simoffload.documents import Edit, Frozen
from simoffload.hardware import Machine, Provenance
from simoffload.models import ModelShape
from simoffload.results import Facts, MemoryStage
from simoffload.schedule import Schedule
from simoffload.strategies.tunables import Tunable, Tunables

if TYPE_CHECKING:
    from simoffload.strategies.programs.checkpoint import CheckpointPlan
    from simoffload.workload import TrainingCheckpoints

WorkloadKind = Literal["inference", "training", "checkpoint"]
SERVED = "vllm"
"""Group of the real runs of vLLM, all on one GPU, with which compiled serving is compared."""
_Inference = Literal["first pass", "prefill", "decode", "load", "store", "allocation"]
_Others = Literal["forward", "backward", "optimizer", "save", "restore"]
PhaseKind = Literal[_Inference, _Others]


class Earlier(NamedTuple):
    """The times of a phase that was already simulated."""

    time_s: float
    """Time from the phase's beginning to its end [s]."""
    repeat: Fraction = Fraction(1)
    """How often the phase occurs in one step."""
    unfinished_s: float = 0.0
    """Time [s] for which work of the phase continues after its end, such as an update on the CPU."""


@dataclass(frozen=True)
class Phase:
    """A Phase is a part of the work that begins and ends when the host waits for all streams."""

    name: str
    """Name of the phase in reports, unique in its plan."""
    kind: PhaseKind
    schedule: Callable[[Mapping[str, Earlier]], Schedule]
    """Function that builds the schedule from the times of the phases in ``depends_on``."""
    new_tokens: int = 0
    """Number of new tokens that each sequence feeds in."""
    context: int = 0
    """Number of tokens that the last new token attends to, including itself."""
    repeat: Fraction = Fraction(1)
    """How often the phase occurs in one step (inference: in one generation)."""
    depends_on: tuple[str, ...] = ()
    """Names of the phases whose times the schedule needs; without cycles."""
    ends_with: str | None = None
    """Stream whose end is the end of the phase, although others may continue."""
    background: bool = False
    """Whether training continues during the phase."""


@dataclass(frozen=True)
class PhaseSeries:
    """A PhaseSeries is a set of phases that differ only in their position, such as decode steps."""

    kind: PhaseKind
    steps: int
    """Number of phases in the series, numbered from 1."""
    step: Callable[[int], Phase]
    durations: Callable[[int], tuple[int, ...]]
    """Function from the number of a phase to the GPU time of each module [ps]."""
    cache_transfers: Callable[[int], tuple[int, ...]] = lambda _: ()
    """Function from its number to the bytes of cache updates; phases with equal times and bytes are equal."""


class Plan(ABC):
    """A Plan is a strategy applied to a model, a workload and a machine: memory over time, and phases."""

    model: ModelShape
    machine: Machine
    warnings: tuple[str, ...]
    """Warnings that the user should read before the run."""
    cpu_costs: tuple[Provenance, ...] = ()
    """Numbers that decide work of the CPU beside its rates of arithmetic, and whose spreads are its own."""

    @property
    @abstractmethod
    def target(self) -> str:
        """Tier that holds the weights, or the checkpoints if only checkpoints are simulated."""

    @property
    def optimizer_target(self) -> str:
        """Tier that holds the optimizer states; "" if there are none."""
        return ""

    @property
    def tiers(self) -> frozenset[str]:
        """All tiers that hold states of the plan."""
        return frozenset({self.target, self.optimizer_target} - {""})

    @property
    @abstractmethod
    def memory_stages(self) -> tuple[MemoryStage, ...]:
        """Memory that each tier must hold at each stage of the run."""

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase | PhaseSeries, ...]:
        """Phases in the order of reports; inference has a prefill and one series of decode steps."""

    @property
    def facts(self) -> Facts:
        """Properties of the run that are known without its times."""
        return Facts()

    @property
    def extrapolations(self) -> tuple[str, ...]:
        """Warnings about numbers used outside the range in which they were measured."""
        return ()

    @property
    def host_costs(self) -> tuple[Provenance, ...]:
        """Costs of the host thread whose spreads are that of its speed: launches and hooks."""
        costs = self.machine.host.deepspeed
        return costs.linear_call, costs.hook

    @property
    def gpu_rates(self) -> tuple[Provenance, ...]:
        """Rates of the GPU's kernels whose spreads are that of its time, beside memory and products."""
        return ()

    @property
    def uncompared(self) -> tuple[str, ...]:
        """What no real run did with which predictions were compared, each to follow "no real run"."""
        return ()

    def on(self, machine: Machine) -> Self:
        """Return the same plan on a machine whose devices have other rates."""
        return replace(self, machine=machine)  # type: ignore[type-var]  # all plans are dataclasses

    @property
    def movable(self) -> tuple[int, str]:
        """Size [B] and name of the states on ``target`` that can be placed elsewhere."""
        return self.model.weight_bytes, "weights"

    @property
    def saved(self) -> CheckpointPlan | None:
        """Plan of the checkpoints that the run saves, if any."""
        return None

    def saving(self, _options: TrainingCheckpoints) -> Plan | None:
        """Return the plan with checkpoints as the options specify; None where they are not modelled.

        Raises InputError for options that contradict each other or the run.
        """
        return None

    @property
    def whole_copies(self) -> Plan | None:
        """Return the plan of the same work with a full copy of the model on every GPU; None if this plan has
        one."""
        return None


class Strategy(Frozen, ABC):
    """A Strategy defines what is offloaded, and how."""

    registered: ClassVar[dict[str, type[Strategy]]] = {}
    """Strategies outside the package by kind, as registered by ``registry.register``."""
    serves: ClassVar[frozenset[WorkloadKind]]
    """Kinds of workload that the strategy supports."""
    gpu_keys: ClassVar[tuple[str, ...]] = ("ranks",)
    """Keys that set the number of GPUs, the one to change first."""
    spans_hosts: ClassVar[bool] = True
    """Whether its processes may be on several hosts."""
    formats: ClassVar[tuple[str, ...]] = ()
    """Formats with fewer bits in which its program loads weights, as ``model.quantization`` names them."""
    files: ClassVar[Mapping[str, type[BaseModel]]] = {}
    """Keys whose values may be paths of files, with the schema of those files."""
    evidence: ClassVar[str] = ""
    """Group of the real runs with which its predictions were compared; "" for none."""
    unseen: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Values of settings with which no run of that group was made; None: without this key."""
    method: ClassVar[str] = ""
    """Name of the method that partitions states among GPUs: "ZeRO", "FSDP"; "" for none."""
    cached: ClassVar[tuple[str, str]] = ("hbm", "")
    """Description of the key-value cache, and its format, empty for the model's data type."""
    gathers: ClassVar[str] = ""
    """Name of the method by which each GPU gathers partitioned layers: "ZeRO-3"; "" for none."""

    @classmethod
    def evidence_of(cls, _settings: Mapping[str, Any]) -> str:
        """Return the group of real runs that were like one with these settings; "" for none."""
        return cls.evidence

    kind: str
    ranks: Annotated[int, Field(strict=True, ge=1, le=65_536)] = 1
    """Number of ranks (processes), each with one GPU."""

    @classmethod
    def alternatives(cls) -> tuple[type[Strategy], ...]:
        """Return the classes of all strategies, for documents that contain one of them."""
        from simoffload.strategies.registry import strategies

        return tuple(strategies().values())

    @classmethod
    def instead(
        cls, _other: Strategy, _model: ModelShape, _workload: Any, _machine: Machine, _gpus: int
    ) -> Iterator[tuple[Tunable, ...]]:
        """Yield what does the work of another strategy with this one: divisions of the weights between
        so many GPUs and other tiers, and the baseline without offloading that ``compare`` adds.

        Of each tuple of alternatives the first that fits is used.
        """
        return iter(())

    @property
    def gpus(self) -> int:
        """Number of GPUs that the processes use."""
        return self.ranks

    @property
    def replicas(self) -> int:
        """Number of data-parallel replicas, each of which processes ``batch_size`` sequences; all stages of a
        pipeline together are one replica."""
        return self.ranks

    @abstractmethod
    def plan(self, model: ModelShape, workload: Any, machine: Machine) -> Plan:
        """Apply the strategy. Raises InputError for missing hardware and for settings that the real program
        refuses."""

    @abstractmethod
    def tunables(self, machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield where the states are on a machine, and with a plan all that planning may change."""

    def batch_unit(self, _batch_size: int) -> int:
        """Return the number of sequences by which a batch grows, which is more than 1 if its parts keep their
        size."""
        return 1

    def batch(self, count: int, *, now: int) -> tuple[Edit, ...]:  # noqa: ARG002
        """Return the edits that set the number of sequences of a batch, which is ``now`` so far."""
        return (Edit.at("workload.batch_size", count), *self.release_fixed_batch("batch_size"))

    def spread(self, gpus: int) -> tuple[Edit, ...]:
        """Return edits that use the given number of GPUs; none where the number of ranks is a Literal."""
        if get_origin(type(self).model_fields["ranks"].annotation) is Literal:
            return ()
        return (Edit(("strategy", "ranks"), gpus), *self.release_fixed_batch())

    @property
    def trains(self) -> str:
        """Name of what training changes: all weights, or adapters."""
        return "all weights"

    def release_fixed_batch(self, *_changed: str) -> tuple[Edit, ...]:
        """Return edits that remove settings which repeat the workload: the batch of all GPUs, and the
        settings for the keys of the workload in ``changed``, so that the workload can change."""
        return ()

    def filled(self, _model: ModelShape) -> tuple[Edit, ...]:
        """Return edits that complete a scenario that was made from the name of a model, without keys of
        ``strategy``."""
        return ()

    @property
    def program(self) -> str:
        """Program and version that read the files of ``exports``; "" without such files."""
        return ""

    def exports(self, _plan: Any) -> dict[str, Any]:
        """Return configuration files with which real programs run the plan: content by name."""
        return {}
