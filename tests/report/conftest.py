"""Small results made by hand, and a run of the engine on a small schedule."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import plotly.graph_objects as go
import pytest

from simoffload.engine import execute
from simoffload.planning.answers import Answer
from simoffload.report.from_comparison import comparison_document
from simoffload.report.from_result import result_document
from simoffload.report.plotting import Properties
from simoffload.report.terminal import terminal_text
from simoffload.results.attribution import Group
from simoffload.results.capacity import MemoryTerm, TierUse
from simoffload.results.inference import InferenceResult
from simoffload.results.passes import LinkUse, PassResult, Share, summarize_pass
from simoffload.results.result import ResultProvenance, SimulationResult
from simoffload.results.timeline import Timeline
from simoffload.results.training import StorageTraffic, TimedPhase, TrainingResult
from simoffload.schedule import Block, Cause, Dependency, Link, Op, Route, Schedule

HOST, COPY, COMPUTE, IO = range(4)
MS, S = 10**9, 10**12  # [ps]
GB = 10**9  # [B]
RAID_READ, RAID_WRITE = Cause("read", "raid"), Cause("write", "raid")
COMPUTE_TIME, TO_GPU, TO_HOST = Cause("gpu-compute"), Cause("host-to-gpu"), Cause("gpu-to-host")
ON_CPU = Cause.own("optimizer on the CPU")
GROUPS: dict[Cause, Group] = {
    COMPUTE_TIME: "GPU",
    TO_GPU: "transfers",
    TO_HOST: "transfers",
    ON_CPU: "host",
}
"""Of causes that are not about "raid"."""
ANSI = re.compile("\x1b\\[\\d+m")
EVIL = '"><img src=x onerror="document.title=1"></script><script>document.title=2</script>\u202e&amp;'
"""A name that no page may take for more than text."""


def checked(figure: Properties | go.Figure) -> dict[str, Any]:
    """The figure as plotly.js reads it, with keys that plotly knows."""
    return go.Figure(figure).to_plotly_json()


def result_text(result: SimulationResult, *, color: bool = False, width: int = 100) -> str:
    """What a terminal shows of one result."""
    return terminal_text(result_document(result), color=color, width=width)


def compare_text(
    results: Sequence[SimulationResult], *, color: bool = False, width: int = 100, **options: Any
) -> str:
    """What a terminal shows of several results."""
    return terminal_text(comparison_document(results, **options), color=color, width=width)


def small_schedule(
    *, layers: int = 12, ranks: int = 2, name: str = "decode 1", label: str = "mlp"
) -> Schedule:
    """Each layer reads 4 GB at 8 GB/s over a drive of 10 GB/s, copies them over and computes."""
    layer = (
        Op("hook", label, HOST, fixed=2 * MS),
        Op("read", f"{label}.weight", IO, size=4 * GB, route=0, after=(Dependency(HOST),)),
        Op("copy", f"{label}.weight", COPY, fixed=MS, size=4 * GB, route=1, after=(Dependency(IO),)),
        Op("compute", label, COMPUTE, fixed=3 * MS, after=(Dependency(COPY),)),
    )
    head = (Op("hook", "embedding", HOST, fixed=MS),)
    tail = (Op("hook", name, HOST, fixed=5 * MS, after=(Dependency(COMPUTE),)),)
    return Schedule(
        name=name,
        ranks=ranks,
        streams=("host", "copy", "compute", "io"),
        links=(Link("raid", 10 * GB), *(Link(f"gpu{rank}.pcie", 25 * GB) for rank in range(ranks))),
        routes=(
            Route(RAID_READ, tuple(((0, 1),) for _ in range(ranks)), cap=8 * GB),
            Route(TO_GPU, tuple(((1 + rank, 1),) for rank in range(ranks)), cap=20 * GB),
        ),
        blocks=(Block("head", head), Block("layer", layer, layers), Block("tail", tail)),
    )


@pytest.fixture(scope="session")
def timeline() -> Timeline:
    """Two ranks, twelve layers."""
    return execute(small_schedule())


@pytest.fixture(scope="session")
def short() -> Timeline:
    """Two ranks, one layer."""
    return execute(small_schedule(layers=1))


def provenance(**model: Any) -> ResultProvenance:
    """Two profiles and three numbers."""
    return ResultProvenance(
        scenario={
            "name": "small",
            "model": {"name": "bloom-7b1", **model},
            "platform": "dgx-a100",
            "workload": {"kind": "inference", "batch_size": 4, "prompt_length": 32, "output_length": 8},
            "strategy": {"kind": "deepspeed", "ranks": 2, "weights": "raid"},
        },
        profiles=(("platform", "dgx-a100", "0" * 64), ("drive", "pm1733", "f" * 64)),
        inputs=(
            ("pm1733", "read.bandwidth", "7 GB/s", "spec", "data sheet, rev. 1.0", "2020-05-01", ""),
            (
                "pm1733",
                "read.latency",
                "90 us",
                "measured",
                "https://example.com/review",
                "2021-02-03",
                "0.1",
            ),
            ("dgx-a100", "host.hook", "50 us", "estimate", "profile of a similar host", "2024-01-01", ""),
        ),
        versions={"simoffload": "0.1.0", "python": "3.11.7"},
    )


def step(name: str, time_s: float, *, cause: Cause = RAID_READ, context: int = 33) -> PassResult:
    """A pass whose time goes to one cause for four fifths."""
    part = round(time_s * S / 100)
    return PassResult(
        name=name,
        new_tokens=1,
        context=context,
        time_ps=100 * part,
        shares=(
            Share(cause, "storage", 81 * part, 90 * part, "raid"),
            Share(COMPUTE_TIME, "GPU", 12 * part, 15 * part, ""),
            Share(TO_GPU, "transfers", 7 * part, 50 * part, "the rate of a single transfer"),
        ),
        links=(
            LinkUse("raid", 14 * GB, 0.9 * time_s, 0.8 * time_s, 25 * GB),
            LinkUse("gpu0.pcie", 7 * GB, 0.5 * time_s, 0.0, 25 * GB),
            LinkUse("gpu1.pcie", 7 * GB, 0.5 * time_s, 0.0, 25 * GB),
        ),
        bounds={"raid": 0.74 * time_s, "compute stream": 0.15 * time_s, "host stream": 0.1 * time_s},
    )


def tiers(*, room: int = 15_000 * GB) -> tuple[TierUse, ...]:
    """Three tiers; the weights of 14 GB lie on "raid", which has ``room`` [B]."""
    hbm = (MemoryTerm("hbm", "gathered parameters, peak", 3 << 30), MemoryTerm("hbm", "activations", 1 << 30))
    dram = (MemoryTerm("dram", "swap buffers", 12 << 30, pinned=True),)
    raid = (MemoryTerm("raid", "weights", 14 * GB),)
    return (
        TierUse("hbm", "hbm", "per GPU", 4 << 30, 40 << 30, hbm),
        TierUse("dram", "dram", "per host", 12 << 30, 1 << 40, dram),
        TierUse("raid", "nvme", "in all", 14 * GB, room, raid),
    )


@pytest.fixture
def make_result() -> Callable[..., InferenceResult]:
    """A result of known numbers; anything may be changed."""

    def make(*, time_s: float = 2.0, **changes: Any) -> InferenceResult:
        values: dict[str, Any] = {
            "name": "small",
            "model": "bloom-7b1",
            "dtype": "float16",
            "parameters": 7_069_016_064,
            "platform": "dgx-a100",
            "target": "raid",
            "ranks": 2,
            "gpus": 2,
            "replicas": 2,
            "batch_size": 4,
            "prompt_length": 32,
            "output_length": 8,
            "capacity": tiers(),
            "advice": (),
            "warnings": (),
            "provenance": provenance(),
            "first_pass": step("first pass", 2 * time_s),
            "first_pass_why": "DeepSpeed does not know the order of modules yet and cannot prefetch",
            "prefill": step("prefill", 1.25 * time_s),
            "decode": (step("decode 1", time_s), step("decode 7", 1.01 * time_s, context=39)),
            "decode_total_s": 7.05 * time_s,
        }
        known = {key: changes.pop(key) for key in ("costs", "explanation") if key in changes}
        answer = Answer.of(InferenceResult(**{**values, **changes}))
        vars(answer).update(known)  # as if it had been worked out
        return answer

    return make


@pytest.fixture
def make_refusal(make_result: Callable[..., InferenceResult]) -> Callable[..., InferenceResult]:
    """A result that does not fit."""

    def make(**changes: Any) -> InferenceResult:
        small = tiers(room=10 * GB)
        values: dict[str, Any] = {
            "capacity": small,
            "advice": (f"{small[2].sentence()}; smallest tier that holds the weights: nfs (100 TB)",),
            "first_pass": None,
            "prefill": None,
            "decode": (),
            "decode_total_s": 0.0,
        }
        return make_result(**{**values, **changes})

    return make


@pytest.fixture
def recorded(make_result: Callable[..., InferenceResult], timeline: Timeline) -> InferenceResult:
    """A result with a timeline that belongs to it."""
    one = summarize_pass(timeline, new_tokens=1, context=33)
    return make_result(
        prefill=one,
        first_pass=one,
        decode=(one,),
        decode_total_s=7 * one.time_s,
        timelines={"decode 1": timeline},
    )


def part(name: str, *causes: tuple[Cause, float, str]) -> PassResult:
    """A pass in which everything is exposed: (cause, seconds, what held it back), and busy twice as long."""
    time = sum(seconds for _, seconds, _ in causes)
    times = [(cause, round(seconds * S), limit) for cause, seconds, limit in causes]
    return PassResult(
        name=name,
        new_tokens=2048,
        context=2048,
        time_ps=sum(exposed for _, exposed, _ in times),
        shares=tuple(
            Share(cause, GROUPS.get(cause, "storage"), exposed, 2 * exposed, limit)
            for cause, exposed, limit in times
        ),
        links=(LinkUse("raid", 7 * GB, 0.5 * time, 0.25 * time, 25 * GB),),
        bounds={"raid": 0.5 * time, "GPU compute": 0.25 * time},
    )


def phases() -> tuple[TimedPhase, ...]:
    """Four micro-steps and the optimizer: 4 x 2 s + 3 x 3 s + 4 s + 19 s = 40 s."""
    compute, copies = (COMPUTE_TIME, ""), (TO_GPU, "gpu.pcie")
    forward = part("forward", (copies[0], 1.5, copies[1]), (compute[0], 0.5, compute[1]))
    backward = part("backward", (compute[0], 1.8, ""), (copies[0], 0.9, copies[1]), (TO_HOST, 0.3, copies[1]))
    last = part("last backward", (compute[0], 2.0, ""), (RAID_WRITE, 1.2, "raid"), (copies[0], 0.8, "x"))
    storage = (RAID_WRITE, 8.6, "raid"), (RAID_READ, 8.5, "raid")
    storage = (RAID_WRITE, 8.6, "raid"), (RAID_READ, 8.5, "raid")
    update = part("optimizer", *storage, (ON_CPU, 1.9, ""))
    return (
        TimedPhase("forward", Fraction(4), forward),
        TimedPhase("backward", Fraction(3), backward),
        TimedPhase("backward", Fraction(1), last),
        TimedPhase("optimizer", Fraction(1), update),
    )


def held(hbm: int, dram: int, raid: int, *, room: int = 15_000 * GB) -> tuple[TierUse, ...]:
    """What three tiers hold at one moment [GiB, GiB, GB]; the optimizer's states lie on "raid"."""
    terms = (
        MemoryTerm("hbm", "gathered parameters, peak", hbm << 30),
        MemoryTerm("dram", "optimizer swap buffers", dram << 30, pinned=True),
        MemoryTerm("raid", "optimizer states", raid * GB),
    )
    return (
        TierUse("hbm", "hbm", "per GPU", hbm << 30, 40 << 30, terms[:1]),
        TierUse("dram", "dram", "per host", dram << 30, 1 << 40, terms[1:2]),
        TierUse("raid", "nvme", "in all", raid * GB, room, terms[2:]),
    )


def stages(*, room: int = 15_000 * GB) -> tuple[tuple[str, tuple[TierUse, ...]], ...]:
    """Three moments; nothing lies on "raid" during initialisation."""
    return (
        ("initialisation", held(2, 64, 0, room=room)[:2]),
        ("forward and backward", held(30, 16, 80, room=room)),
        ("optimizer step", held(8, 48, 100, room=room)),
    )


def peaks(*, room: int = 15_000 * GB) -> tuple[TierUse, ...]:
    """Each tier where ``stages`` is largest."""
    (begin, first), (busy, second), (end, third) = stages(room=room)
    return (
        second[0]._replace(stage=busy),
        first[1]._replace(stage=begin),
        third[2]._replace(stage=end),
    )


@pytest.fixture
def make_training() -> Callable[..., TrainingResult]:
    """A step of training of known numbers; anything may be changed."""

    def make(**changes: Any) -> TrainingResult:
        values: dict[str, Any] = {
            "name": "tuning",
            "model": "llama-2-7b",
            "dtype": "bfloat16",
            "parameters": 7 * GB,
            "platform": "dgx-a100",
            "target": "hbm",
            "optimizer_target": "raid",
            "ranks": 4,
            "gpus": 4,
            "replicas": 4,
            "batch_size": 4,
            "sequence_length": 2048,
            "gradient_accumulation_steps": 4,
            "forward_flops": 1e15,
            "backward_flops": 2e15,
            "recomputed_flops": 0.96e15,
            "capacity": peaks(),
            "advice": (),
            "warnings": (),
            "provenance": provenance(),
            "phases": phases(),
            "memory_stages": stages(),
            "traffic": (StorageTraffic("raid", 84 * GB, 168 * GB),),
        }
        return Answer.of(TrainingResult(**{**values, **changes}))

    return make


@pytest.fixture
def make_training_refusal(make_training: Callable[..., TrainingResult]) -> Callable[..., TrainingResult]:
    """Training whose optimizer states do not fit during the optimizer's step."""

    def make(**changes: Any) -> TrainingResult:
        room = 90 * GB
        uses = peaks(room=room)
        values: dict[str, Any] = {
            "capacity": uses,
            "advice": (f"{uses[2].sentence()}; use more drives",),
            "phases": (),
            "memory_stages": stages(room=room),
        }
        return make_training(**{**values, **changes})

    return make
