"""Kinds of changes that make a scenario fit, of each the smallest that does; all are tried, none computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from simoffload.documents import Edit
from simoffload.hardware.targets import Target
from simoffload.planning.fit.search import largest_that_fits, smallest_that_fits
from simoffload.planning.fit.tunables import smaller, tunables_for
from simoffload.planning.fit.variants import Variants
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
Kind = Callable[[Variants], Iterator[Change]]


def enough(variants: Variants, step: Move) -> Iterator[Change]:
    """The change, if everything fits with it."""
    uses = variants.needs(*step.edits)
    if uses is not None and all(use.fits for use in uses):
        yield Change(step.kind, step.words, step.edits, uses)


def _lacking(variants: Variants) -> list[TierUse]:
    return [use for use in variants.needs() or () if not use.fits]


# -- elsewhere ------------------------------------------------------------------------------------


def tiers(variants: Variants) -> Iterator[Change]:
    """Every other tier that is large enough, the smallest first."""
    for steps in _moves(variants):
        variants.trying(*(step.words for step in steps if step.kind == "tier"))
        yield from _first(variants, steps)


def stages(variants: Variants) -> Iterator[Change]:
    """States divided among more ranks."""
    steps = tuple(_stages(variants))
    variants.trying(*(step.words for step in steps))
    yield from _first(variants, steps)


def _first(variants: Variants, steps: Iterable[Move]) -> Iterator[Change]:
    found = (change for step in steps for change in enough(variants, step))
    yield from [change for change in [next(found, None)] if change is not None]


def _moves(variants: Variants) -> Iterator[tuple[Move, ...]]:
    return variants.scenario.scenario.strategy.moves(variants.plan)


def _stages(variants: Variants) -> Iterator[Move]:
    return variants.scenario.scenario.strategy.stages(variants.plan)


# -- settings -------------------------------------------------------------------------------------


def settings(variants: Variants) -> Iterator[Change]:
    """Settings that the parts of what is too large name as their remedies."""
    for tunable in tunables_for(variants.scenario, variants.plan, _lacking(variants)):
        variants.trying(tunable.word)
        yield from _first(variants, tuple(smaller(tunable)))


# -- less work ------------------------------------------------------------------------------------


def batch(variants: Variants) -> Iterator[Change]:
    """The largest batch that fits; in training also as many sequences a step in more micro-steps."""
    workload = variants.scenario.scenario.workload
    if isinstance(workload, Checkpointing) or workload.batch_size == 1:
        return
    now, freed = workload.batch_size, variants.scenario.scenario.strategy.release_fixed_batch("batch_size")

    def steps(count: int) -> tuple[Edit, ...]:
        return (Edit(("workload", "batch_size"), count), *freed)

    variants.trying("a smaller batch")
    found = largest_that_fits(lambda count: variants.shortage(*steps(count)), start=now, most=now)
    if found is None:
        return
    yield from enough(variants, Move("batch", f"batch {now} → {found} on each GPU", steps(found)))
    if isinstance(workload, Training):
        part = max(count for count in range(1, found + 1) if now % count == 0)
        before = workload.gradient_accumulation_steps
        times = before * now // part
        words = f"batch {now} → {part} on each GPU, {before} → {times} micro-steps in a step"
        key = "gradient_accumulation_steps"
        more = Edit(("workload", key), times)
        freed = variants.scenario.scenario.strategy.release_fixed_batch("batch_size", key)
        same = (Edit(("workload", "batch_size"), part), more, *freed)
        yield from enough(variants, Move("batch", words, same))


def context(variants: Variants) -> Iterator[Change]:
    """The longest sequences that fit; of prompt and output the longer one is cut."""
    workload = variants.scenario.scenario.workload
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

    variants.trying("shorter sequences")
    found = largest_that_fits(lambda count: variants.shortage(step(count)), start=now, most=now)
    if found is not None:
        words = f"{key} {now:,} → {found:,} tokens"
        yield from enough(variants, Move("context", words, (step(found),)))


def precision(variants: Variants) -> Iterator[Change]:
    """16 instead of 32 bit; frozen weights in 4 bit where adapters are trained."""
    if variants.scenario.model.dtype == "float32":
        half = variants.model("dtype", "bfloat16")
        variants.trying("float32 → bfloat16")
        yield from enough(variants, Move("precision", "float32 → bfloat16", (half,)))
    for step in variants.scenario.scenario.strategy.precisions():
        variants.trying(step.words)
        yield from enough(variants, step)


def adapters(variants: Variants) -> Iterator[Change]:
    """LoRA in place of all weights, which trains something else; then with frozen weights in 4 bit."""
    steps = tuple(adapters_of(variants))
    variants.trying(*(step.words for step in steps))
    yield from _first(variants, steps)


def adapters_of(variants: Variants) -> Iterator[Move]:
    """Adapters in place of the model, in training."""
    scenario = variants.scenario
    trains = isinstance(scenario.scenario.workload, Training)
    return scenario.scenario.strategy.adapters(scenario.model) if trains else iter(())


# -- more hardware --------------------------------------------------------------------------------


def gpus(variants: Variants) -> Iterator[Change]:
    """More of the GPUs that the machines have."""
    if isinstance(variants.scenario.scenario.workload, Checkpointing):
        return  # it is as large on however many
    strategy = variants.scenario.scenario.strategy
    now, steps = strategy.gpus, strategy.spread
    most = min(MOST_RANKS, variants.scenario.machine.gpus)
    variants.trying(*([f"up to {most} GPUs"] if most > now else []))
    found = smallest_that_fits(lambda count: variants.shortage(*steps(count)), start=now, most=most)
    if found is not None:
        yield from enough(variants, Move("gpus", f"{now} → {found} GPUs", steps(found)))


def machines(variants: Variants) -> Iterator[Change]:
    """More machines, with as many ranks on each."""
    machine, used = variants.scenario.machine, variants.scenario.scenario.strategy.gpus
    now, each = machine.nodes_of(used), machine.ranks_per_node(used)
    if isinstance(variants.scenario.scenario.workload, Checkpointing):
        return
    if math.isinf(variants.shortage(*variants.spread(now + 1, per_node=each))):
        return  # no network between hosts, or settings that do not go with more ranks
    variants.trying("more machines")
    found = smallest_that_fits(
        lambda count: variants.shortage(*variants.spread(count, per_node=each)),
        start=now,
        most=min(MOST_NODES, MOST_RANKS // each),
    )
    if found is not None:
        words = f"{now} → {found:,} machines, {used} → {found * each:,} GPUs"
        yield from enough(variants, Move("machines", words, variants.spread(found, per_node=each)))


def capacity(variants: Variants) -> Iterator[Change]:
    """More host memory, more drives, larger storage: everything that lacks at once."""
    words: list[str] = []
    edits: list[Edit] = []
    for use in _lacking(variants):
        if use.kind == "hbm":
            return  # a larger GPU is another machine
        step = _memory(variants, use) if use.kind == "dram" else _storage(variants, use)
        if step is None:
            return
        words.append(step[0])
        edits.append(step[1])
    variants.trying(*words)
    yield from enough(variants, Move("capacity", " and ".join(words), tuple(edits)))


def _memory(variants: Variants, use: TierUse) -> tuple[str, Edit] | None:
    """More host memory, as far as the board takes it."""
    host = variants.scenario.machine.host
    size = -(-use.needed // _MODULE) * _MODULE
    has, needed = (format_bytes(each, binary=True) for each in (use.capacity, use.needed))
    told = f"it needs {needed}"
    if host.memory_maximum is None:
        told += f"; whether its board takes that, host/{host.id} does not say: memory_maximum"
    elif use.needed > host.memory_maximum.value:
        most = format_bytes(host.memory_maximum.value, binary=True)
        variants.bar(f"more host memory is not enough: {told}, and host/{host.id} takes no more than {most}")
        return None
    else:
        size = min(size, host.memory_maximum.value)
    words = f"DRAM of each machine {has} → {size >> 30:,} GiB ({told})"
    place = ("profiles", variants.named(f"host/{host.id}"), "memory_capacity")
    return words, Edit(place, f"{size >> 30} GiB")


def _storage(variants: Variants, use: TierUse) -> tuple[str, Edit] | None:
    machine = variants.scenario.machine
    target = machine.wiring.targets[use.tier]
    if target.array is not None:
        return _drives(variants, use, target)
    copies = machine.nodes if target.drives else 1
    size = -(-use.needed // (copies * _TERABYTE))
    kind = "drive" if target.drive is not None else target.kind
    profile = target.drive.id if target.drive is not None else target.id
    has, needed = format_bytes(target.capacity), format_bytes(use.needed // copies)
    words = f"capacity of {use.tier} {has} → {size:,} TB (it needs {needed})"
    return words, Edit(("profiles", variants.named(f"{kind}/{profile}"), "capacity"), f"{size} TB")


def _drives(variants: Variants, use: TierUse, target: Target) -> tuple[str, Edit] | None:
    """More drives in an array; those of RAID10 come in pairs."""
    array = target.array
    assert array is not None
    pair = 2 if array.level == 10 else 1

    def step(count: int) -> Edit:
        return Edit(("profiles", variants.named(f"raid/{array.id}"), "count"), pair * count)

    def lacks(count: int) -> float:
        uses = variants.needs(step(count)) or ()
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


def first_steps(variants: Variants) -> Iterator[Move]:
    """What may be the first of several changes, each as far as it goes, the smaller ones first."""
    workload = variants.scenario.scenario.workload
    if variants.scenario.model.dtype == "float32":
        yield Move("precision", "float32 → bfloat16", (variants.model("dtype", "bfloat16"),))
    if isinstance(workload, Training) and not workload.gradient_checkpointing:
        keys = ("workload", "gradient_checkpointing")
        yield Move("setting", "gradient_checkpointing set", (Edit(keys, True),))
    last = list(_stages(variants))[-1:]
    yield from last
    moves = [step for steps in _moves(variants) for step in steps if not last or last[0].words in step.words]
    yield from sorted(moves, key=lambda step: len(step.edits))
    if not isinstance(workload, Checkpointing) and workload.batch_size > 1:
        released = variants.scenario.scenario.strategy.release_fixed_batch("batch_size")
        one = (Edit(("workload", "batch_size"), 1), *released)
        yield Move("batch", f"batch {workload.batch_size} → 1 on each GPU", one)
