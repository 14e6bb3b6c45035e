"""Strategies and plans: a strategy turns a model, a workload and a machine into a plan of memory and phases.

A strategy is one class in one file, registered by ``registry.register``, to which no other code refers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, get_origin

from pydantic import BaseModel, Field

from simoffload.documents import Edit, Frozen
from simoffload.errors import PlacementError
from simoffload.hardware import Machine, Provenance
from simoffload.models import ModelShape
from simoffload.results import Change, Facts
from simoffload.schedule import Schedule
from simoffload.strategies.held import Held
from simoffload.strategies.terms import Split, Tunable

if TYPE_CHECKING:
    from simoffload.strategies.checkpoint.plan import CheckpointPlan
    from simoffload.workload import TrainingCheckpoints

WorkloadKind = Literal["inference", "training", "checkpoint"]
TierChoice = Literal["any", "storage"]
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


class Placement(NamedTuple):
    """A Placement names the tiers of a machine that hold weights and optimizer."""

    weights: str
    """Tier of the weights, or of the checkpoints if only checkpoints are simulated."""
    optimizer: str | None = None
    """Tier of the optimizer states; None if not specified."""

    def __str__(self) -> str:
        return self.weights if self.optimizer is None else f"{self.weights}+{self.optimizer}"


class Basis(NamedTuple):
    """A Basis says on which measured numbers and real runs the times of a plan rest."""

    host_costs: tuple[Provenance, ...] = ()
    """Costs of the host thread whose spreads are that of its speed: launches and hooks."""
    cpu_costs: tuple[Provenance, ...] = ()
    """Numbers that decide work of the CPU beside its rates of arithmetic, and whose spreads are its own."""
    gpu_rates: tuple[Provenance, ...] = ()
    """Rates of the GPU's kernels whose spreads are that of its time, beside memory and products."""
    uncompared: tuple[str, ...] = ()
    """What no real run did with which predictions were compared, each to follow "no real run"."""
    extrapolations: tuple[str, ...] = ()
    """Warnings about numbers used outside the range in which they were measured."""


class Plan(ABC):
    """A Plan is a strategy applied to a model, a workload and a machine: what tiers hold, and phases."""

    model: ModelShape
    machine: Machine
    warnings: tuple[str, ...]
    """Warnings that the user should read before the run."""
    saved: CheckpointPlan | None = None
    """Plan of the checkpoints that the run saves; None if it saves none."""

    @property
    @abstractmethod
    def held(self) -> Sequence[Held]:
        """What each tier holds for the run (``strategies.held`` derives memory, targets and traffic)."""

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase | PhaseSeries, ...]:
        """Phases in the order of reports; inference has a prefill and one series of decode steps."""

    @property
    def facts(self) -> Facts:
        """Properties of the run that are known without its times."""
        return Facts()

    @property
    def basis(self) -> Basis:
        """Measured numbers and real runs on which its times rest."""
        costs = self.machine.host.deepspeed
        return Basis(host_costs=(costs.linear_call, costs.hook))

    def tunables(self) -> Iterator[Tunable]:
        """Settings that may reduce the memory on their own."""
        return iter(())

    def saving(self, _options: TrainingCheckpoints) -> Plan | None:
        """Return the plan with checkpoints as the options specify; None where they are not modelled.

        Raises InputError for options that contradict each other or the run.
        """
        return None


class Strategy(Frozen, ABC):
    """A Strategy defines what is offloaded, and how."""

    registered: ClassVar[dict[str, type[Strategy]]] = {}
    """Strategies outside the package by kind, as registered by ``registry.register``."""
    serves: ClassVar[frozenset[WorkloadKind]]
    """Kinds of workload that the strategy supports."""
    uses_storage: ClassVar[bool] = True
    """Whether offloaded states may be on drives and servers."""
    tier_keys: ClassVar[Mapping[str, TierChoice]] = {}
    """Keys that name tiers; if each of them is given, they name all tiers that the strategy uses."""
    gpu_keys: ClassVar[tuple[str, ...]] = ("ranks",)
    """Keys that set the number of GPUs, the one to change first."""
    spans_hosts: ClassVar[bool] = True
    """Whether its processes may be on several hosts."""
    formats: ClassVar[tuple[str, ...]] = ()
    """Formats with fewer bits in which its program loads weights, as ``model.quantization`` names them."""
    files: ClassVar[Mapping[str, type[BaseModel]]] = {}
    """Keys whose values may be paths of files, with the schema of those files."""
    placement_name: ClassVar[str] = ""
    """Name of its placement in reports, for strategies whose tier of the weights does not identify it."""
    placement_words: ClassVar[str] = ""
    """Phrase for its placement of {} in sentences, such as "a whole copy of {} in each GPU"."""
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
    def baseline(
        cls, _other: Strategy, _model: ModelShape, _workload: Any, _machine: Machine
    ) -> tuple[Edit, ...]:
        """Return edits that do the work of another strategy with this one, as the baseline without offloading
        that ``compare`` adds; none if it is not such a baseline or the machine is too small."""
        return ()

    @classmethod
    def splits(cls, _model: ModelShape, _machine: Machine, *, gpus: int) -> Iterator[tuple[Split, ...]]:  # noqa: ARG003
        """Yield alternative ways to divide the weights between ``gpus`` GPUs and other tiers, of each the
        preferred one first; the first that fits is used."""
        return iter(())

    @classmethod
    def tier_paths(cls) -> dict[str, TierChoice]:
        """Return ``tier_keys`` and the keys of sections that name tiers, such as ``kv_cache.tier``."""
        return dict(cls.tier_keys)

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
    def places(self, machine: Machine) -> Placement:
        """Return the tiers of the offloaded states. Raises InputError if the machine has no such tier."""

    @abstractmethod
    def placements(self, machine: Machine) -> tuple[Placement, ...]:
        """Return all possible placements of the offloaded states, as ``compare --on`` names them."""

    @abstractmethod
    def retarget(self, placement: Placement, machine: Machine) -> tuple[Edit, ...]:
        """Return edits that move the offloaded states to another placement; ``strategy.kind`` never changes.

        Raises PlacementError if the placement is not among ``placements``. A placement without an optimizer
        is accepted if one with the same weights and an optimizer is among them.
        """

    def caveat(self, _tier: str, *, ranks: int) -> str:  # noqa: ARG002
        """Return an explanation to print after "weights on <tier>" in a list of options, to prevent a
        misreading."""
        return ""

    def resident(self) -> tuple[Edit, ...]:
        """Return the edit that selects a full copy on each GPU. Raises PlacementError where that is not
        equivalent work."""
        return (Edit(("strategy",), {"kind": "resident", "ranks": self.gpus}),)

    def moves(self, _plan: Plan) -> Iterator[tuple[Change, ...]]:
        """Yield, for each tier from the smallest, successive changes that move more states to it."""
        return iter(())

    def stages(self, _plan: Plan) -> Iterator[Change]:
        """Yield edits that partition the states among more ranks."""
        return iter(())

    def caches(self, _plan: Plan) -> Iterator[Change]:
        """Yield the placements of the key-value cache that the program has, the present one among them; none
        if it keeps none or there is no choice."""
        return iter(())

    def batch_unit(self, _batch_size: int) -> int:
        """Return the number of sequences by which a batch grows, which is more than 1 if its parts keep their
        size."""
        return 1

    def batch(self, count: int, *, now: int) -> tuple[Edit, ...]:  # noqa: ARG002
        """Return the edits that set the number of sequences of a batch, which is ``now`` so far."""
        return (Edit.at("workload.batch_size", count), *self.release_fixed_batch("batch_size"))

    def adapters(self, _model: ModelShape) -> Iterator[Change]:
        """Yield edits that train adapters instead of the model."""
        return iter(())

    def precisions(self) -> Iterator[Change]:
        """Yield edits that store states with fewer bits."""
        return iter(())

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

    def allowing(self, _model: ModelShape, _tier: str, *, ranks: int) -> Iterator[tuple[Edit, ...]]:  # noqa: ARG002
        """Yield edits with which all states fit on a tier when divided among ``ranks`` processes, of which
        the first one is used that DeepSpeed does not refuse."""
        return iter([()])

    def settings(self, _model: ModelShape, *, storage: bool, direct: bool) -> Iterator[Change]:  # noqa: ARG002
        """Yield settings that may make the run faster without a purchase.

        ``storage``: states are on drives or servers, so that settings of reads matter. ``direct``: weights
        are on storage that the GPU can read without host memory.
        """
        return iter(())

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


def refused(placement: Placement | str, kind: str, why: str) -> PlacementError:
    """Return the error for a placement that a strategy does not support."""
    return PlacementError.at("strategy.kind", f'{kind} cannot be on "{placement}": {why}')
