"""Kinds of changes that make a scenario fit, of each the smallest that does; all are tried, none computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice

from simoffload.documents import Edit
from simoffload.hardware.targets import Target
from simoffload.planning.fit.evaluator import Evaluator
from simoffload.planning.fit.search import smallest_that_fits
from simoffload.results.capacity import Change, TierUse
from simoffload.strategies.base import Move, Tunable
from simoffload.units import format_bytes
from simoffload.workload import Checkpointing, Inference, Training, TrainingCheckpoints

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
        yield Change(step.kind, step.description, step.edits, uses)


def _lacking(evaluator: Evaluator) -> list[TierUse]:
    return [use for use in evaluator.needs() or () if not use.fits]


# -- elsewhere ------------------------------------------------------------------------------------


def tiers(evaluator: Evaluator) -> Iterator[Change]:
    """Every other tier that is large enough, the smallest first."""
    for steps in evaluator.strategy.moves(evaluator.plan):
        yield from _first(evaluator, steps, *(step.description for step in steps if step.kind == "tier"))


def stages(evaluator: Evaluator) -> Iterator[Change]:
    """States divided among more ranks."""
    steps = tuple(evaluator.strategy.stages(evaluator.plan))
    yield from _first(evaluator, steps, *(step.description for step in steps))


def _first(evaluator: Evaluator, steps: Iterable[Move], *description: str) -> Iterator[Change]:
    """The first that is enough; ``description`` are what is tried."""
    evaluator.trying(*description)
    yield from islice((change for step in steps for change in enough(evaluator, step)), 1)


# -- settings -------------------------------------------------------------------------------------


def settings(evaluator: Evaluator) -> Iterator[Change]:
    """Settings that the parts of what is too large name as their remedies.

    A setting is left out where the parts that name it are smaller than what lacks.
    """
    lacking = _lacking(evaluator)
    for tunable in (*_of_work(evaluator), *evaluator.plan.tunables()):
        named = ([term.size for term in use.terms if tunable.word in term.remedy] for use in lacking)
        if all(sum(sizes) >= -use.headroom for use, sizes in zip(lacking, named, strict=True)):
            yield from _first(evaluator, _other_values(tunable), tunable.word)


def _other_values(tunable: Tunable) -> Iterator[Move]:
    for value in tunable.values(tunable.now):
        description = f"{tunable.word} {tunable.now:,} → {value:,}"
        if isinstance(value, bool):
            description = f"{tunable.word} {'set' if value else 'unset'}"
        yield Move("setting", description, (Edit(tunable.path, value),))


def _of_work(evaluator: Evaluator) -> Iterator[Tunable]:
    workload = evaluator.workload
    for section, kept in (("workload", workload), ("checkpoint", evaluator.scenario.scenario.checkpoint)):
        if isinstance(kept, Checkpointing | TrainingCheckpoints):
            yield Tunable("keep", (section, "keep"), kept.keep, lambda now: iter(range(now - 1, 0, -1)))
    if isinstance(workload, Training):
        key, now = "gradient_checkpointing", workload.gradient_checkpointing
        yield Tunable(key, ("workload", key), now, lambda now: iter([not now]))
        key, steps = "gradient_accumulation_steps", workload.gradient_accumulation_steps
        yield Tunable(key, ("workload", key), steps, lambda now: iter([1] if now > 1 else []))


# -- less work ------------------------------------------------------------------------------------


def _each(evaluator: Evaluator) -> str:
    """What a batch is of, where every GPU has its own."""
    return " on each GPU" if evaluator.strategy.replicas == evaluator.strategy.gpus else ""


def batch(evaluator: Evaluator) -> Iterator[Change]:
    """The largest batch that fits; in training also as many sequences a step in more micro-steps."""
    workload = evaluator.workload
    if isinstance(workload, Checkpointing) or workload.batch_size == 1:
        return
    now = workload.batch_size
    evaluator.trying("a smaller batch")
    found = evaluator.largest(evaluator.batch, start=now, most=now)
    if found is None:
        return
    yield from enough(
        evaluator, Move("batch", f"batch {now} → {found}{_each(evaluator)}", evaluator.batch(found))
    )
    if isinstance(workload, Training):
        part = max(count for count in range(1, found + 1) if now % count == 0)
        before = workload.gradient_accumulation_steps
        times = before * now // part
        description = f"batch {now} → {part}{_each(evaluator)}, {before} → {times} micro-steps in a step"
        key = "gradient_accumulation_steps"
        more = Edit(("workload", key), times)
        release = evaluator.strategy.release_fixed_batch("batch_size", key)
        same = (Edit(("workload", "batch_size"), part), more, *release)
        yield from enough(evaluator, Move("batch", description, same))


def context(evaluator: Evaluator) -> Iterator[Change]:
    """The longest sequences that fit; of prompt and output the longer one is cut."""
    workload = evaluator.workload
    if isinstance(workload, Checkpointing):
        return
    key, now = "sequence_length", workload.max_context
    if isinstance(workload, Inference):
        key, now = max(
            ("prompt_length", workload.prompt_length),
            ("output_length", workload.output_length),
            key=lambda one: one[1],
        )

    def steps(count: int) -> tuple[Edit, ...]:
        return (Edit(("workload", key), count),)

    evaluator.trying("shorter sequences")
    found = evaluator.largest(steps, start=now, most=now)
    if found is not None:
        yield from enough(evaluator, Move("context", f"{key} {now:,} → {found:,} tokens", steps(found)))


def precision(evaluator: Evaluator) -> Iterator[Change]:
    """16 instead of 32 bit; frozen weights in 4 bit where adapters are trained."""
    for step in (*_halved(evaluator), *evaluator.strategy.precisions()):
        yield from _first(evaluator, [step], step.description)


def _halved(evaluator: Evaluator) -> Iterator[Move]:
    if evaluator.scenario.model.dtype == "float32":
        yield Move("precision", "float32 → bfloat16", (evaluator.model("dtype", "bfloat16"),))


def adapters(evaluator: Evaluator) -> Iterator[Change]:
    """LoRA in place of all weights, which trains something else; then with frozen weights in 4 bit."""
    steps = tuple(adapters_of(evaluator))
    yield from _first(evaluator, steps, *(step.description for step in steps))


def adapters_of(evaluator: Evaluator) -> Iterator[Move]:
    """Adapters in place of the model, in training."""
    trains = isinstance(evaluator.workload, Training)
    return evaluator.strategy.adapters(evaluator.scenario.model) if trains else iter(())


# -- more hardware --------------------------------------------------------------------------------


def gpus(evaluator: Evaluator) -> Iterator[Change]:
    """More of the GPUs that the machines have."""
    if isinstance(evaluator.workload, Checkpointing):
        return  # it is as large on however many
    strategy = evaluator.strategy
    now, steps = strategy.gpus, strategy.spread
    most = min(MOST_RANKS, evaluator.scenario.machine.gpus)
    evaluator.trying(*([f"up to {most} GPUs"] if most > now else []))
    found = evaluator.smallest(steps, start=now, most=most)
    if found is not None and found > now:
        yield from enough(evaluator, Move("gpus", f"{now} → {found} GPUs", steps(found)))


def machines(evaluator: Evaluator) -> Iterator[Change]:
    """More machines, with as many ranks on each."""
    machine, used = evaluator.scenario.machine, evaluator.strategy.gpus
    now, each = machine.nodes_of(used), machine.ranks_per_node(used)
    if isinstance(evaluator.workload, Checkpointing):
        return
    steps = partial(evaluator.spread, per_node=each)
    if evaluator.needs(*steps(now + 1)) is None:
        return  # no network between hosts, or settings that do not go with more ranks
    evaluator.trying("more machines")
    found = evaluator.smallest(steps, start=now, most=min(MOST_NODES, MOST_RANKS // each))
    if found is not None and found > now:
        description = f"{now} → {found:,} machines, {used} → {found * each:,} GPUs"
        yield from enough(evaluator, Move("machines", description, steps(found)))


def capacity(evaluator: Evaluator) -> Iterator[Change]:
    """More host memory, more drives, larger storage: everything that lacks at once."""
    description: list[str] = []
    edits: list[Edit] = []
    for use in _lacking(evaluator):
        if use.kind == "hbm":
            return  # a larger GPU is another machine
        step = _memory(evaluator, use) if use.kind == "dram" else _storage(evaluator, use)
        if step is None:
            return
        description.append(step[0])
        edits.append(step[1])
    evaluator.trying(*description)
    yield from enough(evaluator, Move("capacity", " and ".join(description), tuple(edits)))


def _memory(evaluator: Evaluator, use: TierUse) -> tuple[str, Edit] | None:
    """More host memory, as far as the board takes it."""
    host = evaluator.scenario.machine.host
    size = -(-use.needed // _MODULE) * _MODULE
    has, needed = (format_bytes(each, binary=True) for each in (use.capacity, use.needed))
    need = f"it needs {needed}"
    if host.memory_maximum is None:
        need += f"; whether its board takes that, host/{host.id} does not say: memory_maximum"
    elif use.needed > host.memory_maximum.value:
        most = format_bytes(host.memory_maximum.value, binary=True)
        evaluator.bar(f"more host memory is not enough: {need}, and host/{host.id} takes no more than {most}")
        return None
    else:
        size = min(size, host.memory_maximum.value)
    description = f"DRAM of each machine {has} → {size >> 30:,} GiB ({need})"
    place = ("profiles", evaluator.named(f"host/{host.id}"), "memory_capacity")
    return description, Edit(place, f"{size >> 30} GiB")


def _storage(evaluator: Evaluator, use: TierUse) -> tuple[str, Edit] | None:
    machine = evaluator.scenario.machine
    target = machine.topology.targets[use.tier]
    if target.array is not None:
        return _drives(evaluator, use, target)
    copies = machine.nodes if target.drives else 1
    size = -(-use.needed // (copies * _TERABYTE))
    kind = "drive" if target.drive is not None else target.kind
    profile = target.drive.id if target.drive is not None else target.id
    has, needed = format_bytes(target.capacity), format_bytes(use.needed // copies)
    description = f"capacity of {use.tier} {has} → {size:,} TB (it needs {needed})"
    return description, Edit(("profiles", evaluator.named(f"{kind}/{profile}"), "capacity"), f"{size} TB")


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
    workload = evaluator.workload
    yield from _halved(evaluator)
    if isinstance(workload, Training) and not workload.gradient_checkpointing:
        keys = ("workload", "gradient_checkpointing")
        yield Move("setting", "gradient_checkpointing set", (Edit(keys, True),))
    strategy = evaluator.strategy
    last = list(strategy.stages(evaluator.plan))[-1:]
    yield from last
    every = chain.from_iterable(strategy.moves(evaluator.plan))
    moves = [step for step in every if not last or last[0].description in step.description]
    yield from sorted(moves, key=lambda step: len(step.edits))
    if not isinstance(workload, Checkpointing) and workload.batch_size > 1:
        yield Move("batch", f"batch {workload.batch_size} → 1{_each(evaluator)}", evaluator.batch(1))
