"""What a strategy is: it turns a model, a workload and a machine into a plan of memory and phases.

A strategy is one class in one file, registered by ``registry.register``; nothing outside of ``strategies/``
asks for its class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_origin

from pydantic import BaseModel, Field

from simoffload.documents import Edit, Frozen
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.results.capacity import Change, Estimate, MemoryStage
from simoffload.schedule import Schedule
from simoffload.strategies.placement import Placement

if TYPE_CHECKING:
    from simoffload.results.training import StorageRequests, StorageTraffic
    from simoffload.strategies.checkpoint.plan import CheckpointPlan
    from simoffload.workload import TrainingCheckpoints

__all__ = [
    "Earlier",
    "Facts",
    "Phase",
    "PhaseKind",
    "PhaseSeries",
    "Plan",
    "Strategy",
    "TierChoice",
    "Tunable",
    "WorkloadKind",
]

WorkloadKind = Literal["inference", "training", "checkpoint"]
TierChoice = Literal["any", "storage"]
PhaseKind = Literal["first pass", "prefill", "decode", "forward", "backward", "optimizer", "save", "restore"]


class Earlier(NamedTuple):
    """What is known of a phase that was carried out."""

    time_s: float
    """[s] from its begin to its end."""
    repeat: Fraction = Fraction(1)
    """Times in one step."""
    unfinished_s: float = 0.0
    """[s] that work goes on which it left behind, as an update on the CPU."""


@dataclass(frozen=True)
class Phase:
    """A part of the work between two moments at which the host waits for everything."""

    name: str
    """Its name in reports, unique in its plan."""
    kind: PhaseKind
    schedule: Callable[[Mapping[str, Earlier]], Schedule]
    """Its operations, from what is known of the phases in ``depends_on``."""
    new_tokens: int = 0
    """Tokens that each sequence feeds in."""
    context: int = 0
    """Tokens that the last new token attends to, itself included."""
    repeat: Fraction = Fraction(1)
    """Times in one step (of inference: in one generation)."""
    depends_on: tuple[str, ...] = ()
    """Names of the phases whose times its schedule needs; without cycles."""
    ends_with: str | None = None
    """The stream with which it ends although others may go on."""
    background: bool = False
    """Training goes on meanwhile."""


@dataclass(frozen=True)
class PhaseSeries:
    """Phases that differ by their number alone, as decode steps do: not all need to be simulated."""

    kind: PhaseKind
    steps: int
    """They are numbered from 1."""
    step: Callable[[int], Phase]
    durations: Callable[[int], tuple[int, ...]]
    """[ps] of the GPU's work, module by module: steps with equal durations are equal."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a run without its times."""

    spread_bound: float | None = None
    """[tokens/s] (``resident.spread_bound``); None unless all GPUs gather weights from the HBM of all."""
    forward_flops: float = 0.0
    """[FLOP] of the forward passes of one step on one GPU."""
    backward_flops: float = 0.0
    """[FLOP] of the backward passes of one step on one GPU, without recomputation."""
    recomputed_flops: float = 0.0
    """[FLOP] that checkpointing computes again in one step on one GPU."""
    traffic: tuple[StorageTraffic, ...] = ()
    """What one step moves to and from storage."""
    requests: tuple[StorageRequests, ...] = ()
    """Whole requests to storage up to the end of the first step; () where there are none."""
    estimates: tuple[Estimate, ...] = ()
    """Published rules of thumb of the memory; () where there is none for the strategy."""


class Tunable(NamedTuple):
    """A setting at its value, and other values that may need less memory."""

    word: str
    """What the remedies of a :class:`MemoryTerm` call it."""
    path: tuple[str, ...]
    """Where it stands in a scenario."""
    now: int | bool
    values: Callable[[Any], Iterator[int | bool]]
    """Other values, the nearest first."""


class Plan(ABC):
    """A strategy applied to a model, a workload and a machine: memory over time, and phases."""

    model: ModelShape
    machine: Machine
    warnings: tuple[str, ...]
    """What the user should know before the run."""

    @property
    @abstractmethod
    def target(self) -> str:
        """Tier that holds the weights, or of checkpoints alone what takes them."""

    @property
    def optimizer_target(self) -> str:
        """Tier that holds the optimizer's states; "" where there is none."""
        return ""

    @property
    def tiers(self) -> frozenset[str]:
        """All tiers in use."""
        return frozenset({self.target, self.optimizer_target} - {""})

    @property
    @abstractmethod
    def memory_stages(self) -> tuple[MemoryStage, ...]:
        """What each tier must hold at each stage of the run."""

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase | PhaseSeries, ...]:
        """The work, in the order of reports; of inference with a prefill and one series of decode steps."""

    @property
    def facts(self) -> Facts:
        """What is known without times."""
        return Facts()

    @property
    def extrapolations(self) -> tuple[str, ...]:
        """Describe what is outside the range in which the machine was measured."""
        return ()

    def tunables(self) -> Iterator[Tunable]:
        """Settings that alone may need less memory."""
        return iter(())

    def on(self, machine: Machine) -> Self:
        """The same on a machine whose devices have other rates."""
        return replace(self, machine=machine)  # type: ignore[type-var]  # all plans are dataclasses

    @property
    def movable(self) -> tuple[int, str]:
        """[B] and name of what is on ``target`` and may be elsewhere."""
        return self.model.weight_bytes, "weights"

    @property
    def saved(self) -> CheckpointPlan | None:
        """Checkpoints of it that are saved, if any are."""
        return None

    def saving(self, _options: TrainingCheckpoints) -> Plan | None:
        """The same with checkpoints as the options say; None where they are not modelled.

        Raises InputError for options that contradict each other or the run.
        """
        return None

    @property
    def whole_copies(self) -> Plan | None:
        """The same work without offloading, a whole copy on every GPU, where that is another plan."""
        return None


class Strategy(Frozen, ABC):
    """What is offloaded, and how."""

    registered: ClassVar[dict[str, type[Strategy]]] = {}
    """By kind, those that ``registry.register`` made known: all but the package's own."""
    serves: ClassVar[frozenset[WorkloadKind]]
    """Kinds of workload that it can do."""
    uses_storage: ClassVar[bool] = True
    """Whether what it offloads may be on drives and servers."""
    tier_keys: ClassVar[Mapping[str, TierChoice]] = {}
    """Its keys that name tiers; where each of them is given, they name all tiers that it uses."""
    files: ClassVar[Mapping[str, type[BaseModel]]] = {}
    """Its keys that may be paths of files, with what those hold."""
    placement_name: ClassVar[str] = ""
    """Name that reports give its placement, where the tier of the weights alone would be ambiguous."""
    placement_words: ClassVar[str] = ""
    """What a sentence says about that placement of {}: "a whole copy of {} in each GPU"."""
    evidence: ClassVar[str] = ""
    """Group of the real runs that its predictions were compared with; "" where there are none."""

    method: ClassVar[str] = ""
    """What divides its states among GPUs, as it is called: "ZeRO", "FSDP"; "" where nothing does."""
    gathers: ClassVar[str] = ""
    """What has each GPU gather the layers of weights that are divided: "ZeRO-3"; "" where nothing does."""

    kind: str
    ranks: Annotated[int, Field(strict=True, ge=1, le=65_536)] = 1
    """GPUs, one process each."""

    @classmethod
    def alternatives(cls) -> tuple[type[Strategy], ...]:
        """All strategies: one of them stands where a document has a strategy."""
        from simoffload.strategies.registry import strategies

        return tuple(strategies().values())

    @property
    def gpus(self) -> int:
        """GPUs that its processes use."""
        return self.ranks

    @property
    def replicas(self) -> int:
        """Parts of the work that go on side by side, each with ``batch_size`` sequences (data parallelism);
        the stages of a pipeline together do one."""
        return self.ranks

    @abstractmethod
    def plan(self, model: ModelShape, workload: Any, machine: Machine) -> Plan:
        """Apply the strategy; InputError for what the machine lacks or the real program would refuse."""

    @abstractmethod
    def places(self, machine: Machine) -> Placement:
        """Where it keeps what it offloads. Raises InputError if the machine has no such tier."""

    @abstractmethod
    def placements(self, machine: Machine) -> tuple[Placement, ...]:
        """All places where it can keep what it offloads, as ``compare --on`` names them."""

    @abstractmethod
    def retarget(self, placement: Placement, machine: Machine) -> tuple[Edit, ...]:
        """Edits of a scenario, never of ``strategy.kind``, that put what it offloads elsewhere.

        Raises PlacementError for what is not among its ``placements``; a placement that says nothing of the
        optimizer is among them where one that says more is.
        """

    def caveat(self, _tier: str, *, ranks: int) -> str:  # noqa: ARG002
        """Return what must follow "weights on <tier>" in a list of options, so that nobody misreads it."""
        return ""

    def resident(self) -> tuple[Edit, ...]:
        """The edit that replaces it by whole copies in each GPU. Raises PlacementError where none stand for
        the same work."""
        return (Edit(("strategy",), {"kind": "resident", "ranks": self.gpus}),)

    def moves(self, _plan: Plan) -> Iterator[tuple[Change, ...]]:
        """For each tier, the smaller ones first, what puts more of its states there; one after the other."""
        return iter(())

    def stages(self, _plan: Plan) -> Iterator[Change]:
        """What divides its states among more ranks."""
        return iter(())

    def adapters(self, _model: ModelShape) -> Iterator[Change]:
        """What trains adapters in place of the model."""
        return iter(())

    def precisions(self) -> Iterator[Change]:
        """What keeps its states in fewer bits."""
        return iter(())

    def spread(self, gpus: int) -> tuple[Edit, ...]:
        """Edits that let it use so many GPUs; none where its number of ranks is a Literal."""
        if get_origin(type(self).model_fields["ranks"].annotation) is Literal:
            return ()
        return (Edit(("strategy", "ranks"), gpus), *self.release_fixed_batch())

    @property
    def trains(self) -> str:
        """What training changes: all weights, or adapters."""
        return "all weights"

    def release_fixed_batch(self, *_changed: str) -> tuple[Edit, ...]:
        """Edits that leave to the workload what its own configuration repeats of it: the batch of all GPUs,
        and the keys of the workload that are ``changed``."""
        return ()

    def allowing(self, _model: ModelShape, _tier: str, *, ranks: int) -> Iterator[tuple[Edit, ...]]:  # noqa: ARG002
        """What must be set so that all its states may be on a tier, divided among so many ranks.

        Of several ways the first counts that is not refused.
        """
        return iter([()])

    def settings(self, _model: ModelShape, *, storage: bool, direct: bool) -> Iterator[Change]:  # noqa: ARG002
        """What may make it faster and costs nothing.

        ``storage`` = something is on drives or servers, so that there are reads to tune; ``direct`` = weights
        are where they can be read straight into the GPU.
        """
        return iter(())

    def filled(self, _model: ModelShape) -> tuple[Edit, ...]:
        """Edits of a scenario that is made of a model's name alone, which says nothing under ``strategy``."""
        return ()

    @property
    def program(self) -> str:
        """Program and version that reads its ``exports``; "" where there are none."""
        return ""

    def exports(self, _plan: Any) -> dict[str, Any]:
        """Files with which real programs do what was planned: content by name."""
        return {}
