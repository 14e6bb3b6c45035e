"""Kinds of changes that make a scenario fit, of each the smallest that does; all are tried, none computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from simoffload.documents import Edit
from simoffload.hardware.targets import Target
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.fit.search import largest_that_fits, smallest_that_fits
from simoffload.planning.fit.tunables import smaller, tunables_for
from simoffload.results.capacity import Change, TierUse
from simoffload.strategies.base import Move
from simoffload.units import format_bytes
from simoffload.workload import Checkpointing, Inference, Training

__all__ = [
    "BOUGHT",
    "KINDS",
    "MOST_NODES",
    "MOST_RANKS",
    "Kind",
    "adapters",
    "adapters_of",
    "context",
    "enough",
    "first_steps",
    "precision",
    "settings",
]

MOST_NODES, MOST_RANKS = 8192, 65_536
"""As many as a scenario may have."""
_MOST_DRIVES = 256
_MODULE = 64 << 30
"""[B] Host memory is counted in steps of 64 GiB: a module in each of some channels; our choice."""
_TERABYTE = 10**12
Kind = Callable[[Evaluator], Iterator[Change]]


def enough(evaluator: Evaluator, step: Move) -> Iterator[Change]:
    """The change, if everything fits with it."""
    uses = evaluator.needs(*step.edits)
    if uses is not None and all(use.fits for use in uses):
        yield Change(step.kind, step.words, step.edits, uses)


def _lacking(evaluator: Evaluator) -> list[TierUse]:
    return [use for use in evaluator.needs() or () if not use.fits]


# -- elsewhere ------------------------------------------------------------------------------------


def tiers(evaluator: Evaluator) -> Iterator[Change]:
    """Every other tier that is large enough, the smallest first."""
    for steps in _moves(evaluator):
        evaluator.trying(*(step.words for step in steps if step.kind == "tier"))
        yield from _first(evaluator, steps)


def stages(evaluator: Evaluator) -> Iterator[Change]:
    """States divided among more ranks."""
    steps = tuple(_stages(evaluator))
    evaluator.trying(*(step.words for step in steps))
    yield from _first(evaluator, steps)


def _first(evaluator: Evaluator, steps: Iterable[Move]) -> Iterator[Change]:
    found = (change for step in steps for change in enough(evaluator, step))
    yield from [change for change in [next(found, None)] if change is not None]


def _moves(evaluator: Evaluator) -> Iterator[tuple[Move, ...]]:
    return evaluator.scenario.scenario.strategy.moves(evaluator.plan)


def _stages(evaluator: Evaluator) -> Iterator[Move]:
    return evaluator.scenario.scenario.strategy.stages(evaluator.plan)


# -- settings -------------------------------------------------------------------------------------


def settings(evaluator: Evaluator) -> Iterator[Change]:
    """Settings that the parts of what is too large name as their remedies."""
    for tunable in tunables_for(evaluator.scenario, evaluator.plan, _lacking(evaluator)):
        evaluator.trying(tunable.word)
        yield from _first(evaluator, tuple(smaller(tunable)))


# -- less work ------------------------------------------------------------------------------------


def batch(evaluator: Evaluator) -> Iterator[Change]:
    """The largest batch that fits; in training also as many sequences a step in more micro-steps."""
    workload = evaluator.scenario.scenario.workload
    if isinstance(workload, Checkpointing) or workload.batch_size == 1:
        return
    now, freed = workload.batch_size, evaluator.scenario.scenario.strategy.release_fixed_batch("batch_size")

    def steps(count: int) -> tuple[Edit, ...]:
        return (Edit(("workload", "batch_size"), count), *freed)

    evaluator.trying("a smaller batch")
    found = largest_that_fits(lambda count: evaluator.shortage(*steps(count)), start=now, most=now)
    if found is None:
        return
    yield from enough(evaluator, Move("batch", f"batch {now} → {found} on each GPU", steps(found)))
    if isinstance(workload, Training):
        part = max(count for count in range(1, found + 1) if now % count == 0)
        before = workload.gradient_accumulation_steps
        times = before * now // part
        words = f"batch {now} → {part} on each GPU, {before} → {times} micro-steps in a step"
        key = "gradient_accumulation_steps"
        more = Edit(("workload", key), times)
        freed = evaluator.scenario.scenario.strategy.release_fixed_batch("batch_size", key)
        same = (Edit(("workload", "batch_size"), part), more, *freed)
        yield from enough(evaluator, Move("batch", words, same))


def context(evaluator: Evaluator) -> Iterator[Change]:
    """The longest sequences that fit; of prompt and output the longer one is cut."""
    workload = evaluator.scenario.scenario.workload
    if isinstance(workload, Checkpointing):
        return
    key, now = "sequence_length", workload.max_context
    if isinstance(workload, Inference):
        key, now = max(
            ("prompt_length", workload.prompt_length),
            ("output_length", workload.output_length),
            key=lambda one: one[1],
        )

    def step(count: int) -> Edit:
        return Edit(("workload", key), count)

    evaluator.trying("shorter sequences")
    found = largest_that_fits(lambda count: evaluator.shortage(step(count)), start=now, most=now)
    if found is not None:
        words = f"{key} {now:,} → {found:,} tokens"
        yield from enough(evaluator, Move("context", words, (step(found),)))


def precision(evaluator: Evaluator) -> Iterator[Change]:
    """16 instead of 32 bit; frozen weights in 4 bit where adapters are trained."""
    if evaluator.scenario.model.dtype == "float32":
        half = evaluator.model("dtype", "bfloat16")
        evaluator.trying("float32 → bfloat16")
        yield from enough(evaluator, Move("precision", "float32 → bfloat16", (half,)))
    for step in evaluator.scenario.scenario.strategy.precisions():
        evaluator.trying(step.words)
        yield from enough(evaluator, step)


def adapters(evaluator: Evaluator) -> Iterator[Change]:
    """LoRA in place of all weights, which trains something else; then with frozen weights in 4 bit."""
    steps = tuple(adapters_of(evaluator))
    evaluator.trying(*(step.words for step in steps))
    yield from _first(evaluator, steps)


def adapters_of(evaluator: Evaluator) -> Iterator[Move]:
    """Adapters in place of the model, in training."""
    scenario = evaluator.scenario
    trains = isinstance(scenario.scenario.workload, Training)
    return scenario.scenario.strategy.adapters(scenario.model) if trains else iter(())


# -- more hardware --------------------------------------------------------------------------------


def gpus(evaluator: Evaluator) -> Iterator[Change]:
    """More of the GPUs that the machines have."""
    if isinstance(evaluator.scenario.scenario.workload, Checkpointing):
        return  # it is as large on however many
    strategy = evaluator.scenario.scenario.strategy
    now, steps = strategy.gpus, strategy.spread
    most = min(MOST_RANKS, evaluator.scenario.machine.gpus)
    evaluator.trying(*([f"up to {most} GPUs"] if most > now else []))
    found = smallest_that_fits(lambda count: evaluator.shortage(*steps(count)), start=now, most=most)
    if found is not None:
        yield from enough(evaluator, Move("gpus", f"{now} → {found} GPUs", steps(found)))


def machines(evaluator: Evaluator) -> Iterator[Change]:
    """More machines, with as many ranks on each."""
    machine, used = evaluator.scenario.machine, evaluator.scenario.scenario.strategy.gpus
    now, each = machine.nodes_of(used), machine.ranks_per_node(used)
    if isinstance(evaluator.scenario.scenario.workload, Checkpointing):
        return
    if math.isinf(evaluator.shortage(*evaluator.spread(now + 1, per_node=each))):
        return  # no network between hosts, or settings that do not go with more ranks
    evaluator.trying("more machines")
    found = smallest_that_fits(
        lambda count: evaluator.shortage(*evaluator.spread(count, per_node=each)),
        start=now,
        most=min(MOST_NODES, MOST_RANKS // each),
    )
    if found is not None:
        words = f"{now} → {found:,} machines, {used} → {found * each:,} GPUs"
        yield from enough(evaluator, Move("machines", words, evaluator.spread(found, per_node=each)))


def capacity(evaluator: Evaluator) -> Iterator[Change]:
    """More host memory, more drives, larger storage: everything that lacks at once."""
    words: list[str] = []
    edits: list[Edit] = []
    for use in _lacking(evaluator):
        if use.kind == "hbm":
            return  # a larger GPU is another machine
        step = _memory(evaluator, use) if use.kind == "dram" else _storage(evaluator, use)
        if step is None:
            return
        words.append(step[0])
        edits.append(step[1])
    evaluator.trying(*words)
    yield from enough(evaluator, Move("capacity", " and ".join(words), tuple(edits)))


def _memory(evaluator: Evaluator, use: TierUse) -> tuple[str, Edit] | None:
    """More host memory, as far as the board takes it."""
    host = evaluator.scenario.machine.host
    size = -(-use.needed // _MODULE) * _MODULE
    has, needed = (format_bytes(each, binary=True) for each in (use.capacity, use.needed))
    told = f"it needs {needed}"
    if host.memory_maximum is None:
        told += f"; whether its board takes that, host/{host.id} does not say: memory_maximum"
    elif use.needed > host.memory_maximum.value:
        most = format_bytes(host.memory_maximum.value, binary=True)
        evaluator.bar(f"more host memory is not enough: {told}, and host/{host.id} takes no more than {most}")
        return None
    else:
        size = min(size, host.memory_maximum.value)
    words = f"DRAM of each machine {has} → {size >> 30:,} GiB ({told})"
    place = ("profiles", evaluator.named(f"host/{host.id}"), "memory_capacity")
    return words, Edit(place, f"{size >> 30} GiB")


def _storage(evaluator: Evaluator, use: TierUse) -> tuple[str, Edit] | None:
    machine = evaluator.scenario.machine
    target = machine.wiring.targets[use.tier]
    if target.array is not None:
        return _drives(evaluator, use, target)
    copies = machine.nodes if target.drives else 1
    size = -(-use.needed // (copies * _TERABYTE))
    kind = "drive" if target.drive is not None else target.kind
    profile = target.drive.id if target.drive is not None else target.id
    has, needed = format_bytes(target.capacity), format_bytes(use.needed // copies)
    words = f"capacity of {use.tier} {has} → {size:,} TB (it needs {needed})"
    return words, Edit(("profiles", evaluator.named(f"{kind}/{profile}"), "capacity"), f"{size} TB")


def _drives(evaluator: Evaluator, use: TierUse, target: Target) -> tuple[str, Edit] | None:
    """More drives in an array; those of RAID10 come in pairs."""
    array = target.array
    assert array is not None
    pair = 2 if array.level == 10 else 1

    def step(count: int) -> Edit:
        return Edit(("profiles", evaluator.named(f"raid/{array.id}"), "count"), pair * count)

    def lacks(count: int) -> float:
        uses = evaluator.needs(step(count)) or ()
        return next((-one.headroom / one.capacity for one in uses if one.tier == use.tier), math.inf)

    found = smallest_that_fits(lacks, start=array.count // pair, most=_MOST_DRIVES // pair)
    if found is None:
        return None
    where = "of each machine " if target.drives else ""
    return f"drives {where}in {use.tier} {array.count} → {pair * found}", step(found)


KINDS: tuple[Kind, ...] = (stages, tiers, settings, batch, context, precision, gpus, machines, capacity)
"""In the order in which they are told: what costs nothing first."""
BOUGHT = {"gpus", "machines", "capacity"}
"""What costs something."""


def first_steps(evaluator: Evaluator) -> Iterator[Move]:
    """What may be the first of several changes, each as far as it goes, the smaller ones first."""
    workload = evaluator.scenario.scenario.workload
    if evaluator.scenario.model.dtype == "float32":
        yield Move("precision", "float32 → bfloat16", (evaluator.model("dtype", "bfloat16"),))
    if isinstance(workload, Training) and not workload.gradient_checkpointing:
        keys = ("workload", "gradient_checkpointing")
        yield Move("setting", "gradient_checkpointing set", (Edit(keys, True),))
    last = list(_stages(evaluator))[-1:]
    yield from last
    moves = [step for steps in _moves(evaluator) for step in steps if not last or last[0].words in step.words]
    yield from sorted(moves, key=lambda step: len(step.edits))
    if not isinstance(workload, Checkpointing) and workload.batch_size > 1:
        released = evaluator.scenario.scenario.strategy.release_fixed_batch("batch_size")
        one = (Edit(("workload", "batch_size"), 1), *released)
        yield Move("batch", f"batch {workload.batch_size} → 1 on each GPU", one)
