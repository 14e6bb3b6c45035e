"""Strategies and plans: a strategy turns a model, a workload and a machine into a plan of memory and phases.

A strategy is a class, registered by ``registry.register``, to which no code outside ``strategies`` refers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn

from pydantic import BaseModel, Field

from simoffload.documents import Edit, Frozen
from simoffload.hardware import Machine, Provenance
from simoffload.models import ModelShape
from simoffload.results import Facts
from simoffload.schedule import Schedule
from simoffload.strategies.held import Held
from simoffload.strategies.tunables import Sizes, Tunable, Tunables

if TYPE_CHECKING:
    from simoffload.strategies.programs.checkpoint import CheckpointPlan
    from simoffload.workload import TrainingCheckpoints

WorkloadKind = Literal["inference", "training", "checkpoint"]
SERVED, SERVED_OTHERS = "vllm", "vllm (others)"
"""Groups of the real runs of vLLM, all on one GPU, with which compiled serving is compared: of dense models
in 16 bits on the GPU, and of those with experts, fewer bits or weights in host memory."""
_Inference = Literal["first pass", "prefill", "decode", "load", "store", "allocation"]
_Others = Literal["forward", "backward", "optimizer", "save", "restore"]
PhaseKind = Literal[_Inference, _Others]


NOW = (
    "write tunables(machine, plan), which yields Placements and, with a plan, each Tunable "
    "(strategies/tunables.py), and of its plan held, which lists what tiers hold (strategies/held.py)"
)
"""What a program that answered these questions by members of its own has to write."""


def __getattr__(name: str) -> NoReturn:
    if name in ("Placement", "TierChoice", "refused"):
        raise ImportError(f"{name}: this program is written for an older version of simoffload; {NOW}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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


class Basis(NamedTuple):
    """A Basis says on which measured numbers and real runs the times of a plan rest."""

    host_costs: tuple[Provenance, ...] = ()
    """Costs of the host thread whose spreads are that of its speed: launches and hooks."""
    cpu_costs: tuple[Provenance, ...] = ()
    """Numbers that decide work of the CPU beside its rates of arithmetic, and whose spreads are its own."""
    gpu_rates: tuple[Provenance, ...] = ()
    """Rates of the GPU's kernels whose spreads are that of its time, beside memory and products."""
    evidence: str = ""
    """Group of the real runs that were like it, if more than the settings decides it."""
    uncompared: tuple[str, ...] = ()
    """What no real run did with which predictions were compared, each to follow "no real run"."""
    extrapolations: tuple[str, ...] = ()
    """Warnings about numbers used outside the range in which they were measured."""


class ServingLimits(NamedTuple):
    """ServingLimits are those of an engine that serves a stream of requests on one replica."""

    tokens: int
    """Most tokens of a step (``max_num_batched_tokens``)."""
    sequences: int
    """Most sequences at once (``max_num_seqs``)."""
    blocks: int
    """Number of blocks of the key-value cache on each GPU."""
    block_size: int
    """Number of tokens of a block."""
    graphs: tuple[int, ...]
    """Batch sizes of which CUDA graphs are captured, up to which a step of fewer tokens is padded."""


class Plan(ABC):
    """A Plan is a strategy applied to a model, a workload and a machine: what tiers hold, and phases."""

    def __init_subclass__(cls, **keys: Any) -> None:
        super().__init_subclass__(**keys)
        if older := sorted({"memory_stages", "optimizer_target", "target", "tiers"} & vars(cls).keys()):
            raise TypeError(f"{cls.__qualname__} defines {', '.join(older)}, of which nothing asks; {NOW}")

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

    @property
    def serving_limits(self) -> ServingLimits | None:
        """Limits of the engine that runs the plan, if it serves streams of requests."""
        return None

    def saving(self, _options: TrainingCheckpoints) -> Plan | None:
        """Return the plan with checkpoints as the options specify; None where they are not modelled.

        Raises InputError for options that contradict each other or the run.
        """
        return None


class ProgramTraits(NamedTuple):
    """The ProgramTraits are what is known of its program, whatever its settings are."""

    evidence: str | Callable[[Mapping[str, Any]], str] = ""
    """Group of the real runs with which its predictions were compared, or a function that returns it for the
    settings of a run; "" for none."""
    unseen: Mapping[str, tuple[Any, ...]] = {}
    """Values of settings with which no run of that group was made; None: without this key."""
    formats: tuple[str, ...] = ()
    """Formats with fewer bits in which the program loads weights, as ``model.quantization`` names them."""
    loads: Callable[[ModelShape], bool] = lambda _: True
    """Function that returns whether it loads a model as it is released; if not, one of its formats may be."""
    method: str = ""
    """Name of the method that partitions states among GPUs: "ZeRO", "FSDP"; "" for none."""
    gathers: str = ""
    """Name of the method by which each GPU gathers partitioned layers: "ZeRO-3"; "" for none."""
    files: Mapping[str, type[BaseModel]] = {}
    """Keys whose values may be paths of files, with the schema of those files."""
    gpu_keys: tuple[str, ...] = ("ranks",)
    """Keys that set the number of GPUs, the one to change first."""
    on_cpu: bool = False
    """Whether the CPU computes layers that the GPU has no room for."""
    rates_prompts: bool = False
    """Whether its users state the rate of prompts beside that of generation, as its own benchmark does."""
    spans_hosts: bool = True
    """Whether its processes may be on several hosts."""


class Description(NamedTuple):
    """A Description says what the settings of a strategy make of its program."""

    program: str = ""
    """Program and version that read the files of ``exports``; "" without such files."""
    cache: str = "hbm"
    """Place, and what else is said, of the key-value cache."""
    cache_format: str = ""
    """Format of the cache; "" for the model's data type."""
    trains: str = "all weights"
    """Name of what training changes: all weights, or adapters."""


class Strategy(Frozen, ABC):
    """A Strategy defines what is offloaded, and how."""

    serves: ClassVar[frozenset[WorkloadKind]]
    """Kinds of workload that the strategy supports."""
    traits: ClassVar[ProgramTraits] = ProgramTraits()
    """What is known of its program, whatever its settings are."""

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

    def sizes(self, _batch_size: int = 1) -> Sizes:
        """Return the edits that change how much it works on, which is a batch of so many sequences so far."""
        return Sizes.of(self)

    def filled(self, _model: ModelShape) -> tuple[Edit, ...]:
        """Return edits that complete a scenario that was made from the name of a model, without keys of
        ``strategy``."""
        return ()

    @property
    def description(self) -> Description:
        """What its settings make of the program, in words."""
        return Description()

    def exports(self, _plan: Any) -> dict[str, Any]:
        """Return configuration files with which real programs run the plan: content by name."""
        return {}
