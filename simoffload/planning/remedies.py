"""Changes of one kind that make a scenario fit; every one is tried on the scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter

from simoffload.bisection import first_that_holds, smallest_that_fits
from simoffload.documents import Edit
from simoffload.hardware import Target
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.serving import formats
from simoffload.planning.splits import of_other_strategies
from simoffload.results import HALVED, Change, TierUse
from simoffload.strategies.tunables import Purpose, Tunable, memory_tunables
from simoffload.units import formatted_apart
from simoffload.workload import Checkpointing, Inference, Training, TrainingCheckpoints

MOST_NODES, MOST_RANKS = 8192, 65_536
"""Largest number of nodes and of ranks that a scenario accepts."""
_MOST_DRIVES, _TERABYTE = 256, 10**12
_MODULE = 64 << 30
"""[B] Host memory is counted in steps of 64 GiB: a module in each of some channels; our choice."""
Kind = Callable[[Evaluator], Iterator[Change]]


def enough(evaluator: Evaluator, step: Change) -> Iterator[Change]:
    """Yield the change with the memory that it leaves, if everything fits with it."""
    if evaluator.fits(*step.edits):
        yield step._replace(uses=evaluator.needs(*step.edits) or ())


def _lacking(evaluator: Evaluator) -> list[TierUse]:
    return [use for use in evaluator.needs() or () if not use.fits]


# -- elsewhere ------------------------------------------------------------------------------------


def tiers(evaluator: Evaluator, purpose: Purpose = "tier") -> Iterator[Change]:
    """Yield, for each tier, the first placement on it that is enough; the smallest tiers first."""
    for tunable in evaluator.tunables(purpose):
        steps = tuple(tunable.changes)
        tried = (step.description for step in steps if step.kind in {"tier", "stage"})
        yield from _first(evaluator, steps, *tried)


def stages(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the first stage that divides the states among enough ranks."""
    return tiers(evaluator, "partition")


def _first(evaluator: Evaluator, steps: Iterable[Change], *description: str) -> Iterator[Change]:
    """Yield the first change that is enough; ``description`` say what is tried."""
    evaluator.trying(*description)
    yield from islice((change for step in steps for change in enough(evaluator, step)), 1)


# -- settings -------------------------------------------------------------------------------------


def settings(evaluator: Evaluator) -> Iterator[Change]:
    """Yield settings that the memory terms of a tier that is too small name as their remedies.

    A setting is left out where the parts that name it are smaller than the shortage.
    """
    lacking = _lacking(evaluator)
    found = (*_of_work(evaluator), *evaluator.tunables("memory"))
    for word, tunables in groupby(found, attrgetter("frees")):
        named = ([term.size for term in use.terms if word in term.remedy] for use in lacking)
        if all(sum(sizes) >= -use.headroom for use, sizes in zip(lacking, named, strict=True)):
            yield from _first(evaluator, _other_values(evaluator, tunables, lacking), word)


def _other_values(
    evaluator: Evaluator, tunables: Iterable[Tunable], lacking: Sequence[TierUse]
) -> Iterator[Change]:
    """Yield for each direction of a setting the nearest value with which ``lacking`` tiers are large
    enough."""
    tiers = {use.tier for use in lacking}

    def suffices(tunable: Tunable, value: float) -> bool:
        uses = evaluator.needs(*tunable.change(value).edits)
        return uses is None or all(use.fits for use in uses if use.tier in tiers)  # None: refused, too far

    for tunable in tunables:
        listed = tunable.values if isinstance(tunable.values, Sequence) else tuple(tunable.values)
        value = first_that_holds(listed, partial(suffices, tunable))
        if value is not None:
            yield tunable.change(value)


def _of_work(evaluator: Evaluator) -> Iterator[Tunable]:
    workload = evaluator.workload
    for section, kept in (("workload", workload), ("checkpoint", evaluator.scenario.scenario.checkpoint)):
        if isinstance(kept, Checkpointing | TrainingCheckpoints):
            yield from memory_tunables("keep", (section, "keep"), kept.keep, range(kept.keep - 1, 0, -1))
    if isinstance(workload, Training):
        key, now = "gradient_checkpointing", workload.gradient_checkpointing
        yield from memory_tunables(key, ("workload", key), now, [not now])
        key, steps = "gradient_accumulation_steps", workload.gradient_accumulation_steps
        yield from memory_tunables(key, ("workload", key), steps, [1] if steps > 1 else [])


# -- less work ------------------------------------------------------------------------------------


def each(evaluator: Evaluator) -> str:
    """Return what the batch counts, where every GPU has its own."""
    return " on each GPU" if evaluator.strategy.replicas == evaluator.strategy.gpus else ""


def batch(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the largest batch that fits; in training also as many sequences in more micro-steps."""
    workload = evaluator.workload
    if isinstance(workload, Checkpointing) or workload.batch_size == 1:
        return
    now = workload.batch_size
    evaluator.trying("a smaller batch")
    found = evaluator.largest_batch(most=now)
    if found is None:
        return
    yield from enough(
        evaluator, Change("batch", f"batch {now} → {found}{each(evaluator)}", evaluator.batch(found))
    )
    if isinstance(workload, Training):
        part = max(count for count in range(1, found + 1) if now % count == 0)
        before = workload.gradient_accumulation_steps
        times = before * now // part
        description = f"batch {now} → {part}{each(evaluator)}, {before} → {times} micro-steps in a step"
        key = "gradient_accumulation_steps"
        more = Edit(("workload", key), times)
        release = evaluator.strategy.sizes().along("batch_size", key)
        same = (Edit(("workload", "batch_size"), part), more, *release)
        yield from enough(evaluator, Change("batch", description, same))


def context(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the longest sequences that fit; of prompt and output the longer one is cut."""
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
        yield from enough(evaluator, Change("context", f"{key} {now:,} → {found:,} tokens", steps(found)))


def precision(evaluator: Evaluator) -> Iterator[Change]:
    """Yield 16 instead of 32 bit, other optimizers and 4-bit frozen weights in training, and quantized
    weights."""
    steps = (*halved(evaluator), *evaluator.changes("precision"), *formats(evaluator))
    for step in steps:
        yield from _first(evaluator, [step], step.description)


def halved(evaluator: Evaluator) -> Iterator[Change]:
    """Yield 16 instead of 32 bit for every number."""
    if evaluator.scenario.model.dtype == "float32":
        edit = evaluator.model("dtype", "bfloat16")
        yield Change("precision", "float32 → bfloat16", (edit,), quality=HALVED)


def adapters(evaluator: Evaluator) -> Iterator[Change]:
    """Yield LoRA in place of all weights, which trains something else, and with frozen weights in 4 bit."""
    for step in adapters_of(evaluator):
        yield from _first(evaluator, [step], step.description)


def adapters_of(evaluator: Evaluator) -> Iterator[Change]:
    """Return the changes that train adapters in place of the model; none but in training."""
    trains = isinstance(evaluator.workload, Training)
    return evaluator.changes("adapters") if trains else iter(())


def other_strategies(evaluator: Evaluator) -> Iterator[Change]:
    """Yield for each other strategy its first split that fits."""
    yield from chain.from_iterable(enough(evaluator, one) for one in of_other_strategies(evaluator))


# -- more hardware --------------------------------------------------------------------------------


def gpus(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the smallest number of GPUs of the machines that is enough."""
    if isinstance(evaluator.workload, Checkpointing):
        return  # it is as large on however many
    strategy = evaluator.strategy
    now, steps = strategy.gpus, strategy.sizes().gpus
    most = min(MOST_RANKS, evaluator.scenario.machine.gpus)
    evaluator.trying(*([f"up to {most} GPUs"] if most > now else []))
    found = evaluator.smallest(steps, start=now, most=most)
    if found is not None and found > now:
        yield from enough(evaluator, Change("gpus", f"{now} → {found} GPUs", steps(found)))


def machines(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the smallest number of machines that is enough, with all of their GPUs at work, if the strategy
    spans hosts."""
    machine, used = evaluator.scenario.machine, evaluator.strategy.gpus
    now, each = machine.nodes_of(used), machine.gpus_per_node
    if isinstance(evaluator.workload, Checkpointing) or not evaluator.strategy.traits.spans_hosts:
        return
    steps = partial(evaluator.spread, per_node=each)
    if evaluator.needs(*steps(now + 1)) is None:
        return  # no network between hosts, or settings that do not go with more ranks
    evaluator.trying("more machines")
    found = evaluator.smallest(steps, start=now, most=min(MOST_NODES, MOST_RANKS // each))
    if found is not None and found > now:
        description = f"{now} → {found:,} machines, {used} → {found * each:,} GPUs"
        yield from enough(evaluator, Change("machines", description, steps(found)))


def capacity(evaluator: Evaluator) -> Iterator[Change]:
    """Yield more host memory, drives and larger storage for all tiers that are too small, as one change."""
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
    yield from enough(evaluator, Change("capacity", " and ".join(description), tuple(edits)))


def _memory(evaluator: Evaluator, use: TierUse) -> tuple[str, Edit] | None:
    """Return more host memory, in words and as an edit; None where its board does not take enough."""
    host = evaluator.scenario.machine.host
    size = -(-use.needed // _MODULE) * _MODULE
    needed, has = formatted_apart(use.needed, use.capacity, binary=True)
    need = f"it needs {needed}"
    if host.memory_maximum is None:
        need += f"; host/{host.id} has no memory_maximum, so check the limit of its board"
    elif use.needed > host.memory_maximum.value:
        needed, most = formatted_apart(use.needed, host.memory_maximum.value, binary=True)
        board = f"host/{host.id} supports no more than {most}"
        evaluator.bar(f"more host memory is not enough: it needs {needed}, and {board}")
        return None
    else:
        size = min(size, host.memory_maximum.value)
    description = f"DRAM of each machine {has} → {size >> 30:,} GiB ({need})"
    place = ("profiles", evaluator.named(f"host/{host.id}"), "memory_capacity")
    return description, Edit(place, f"{size >> 30} GiB")


def _storage(evaluator: Evaluator, use: TierUse) -> tuple[str, Edit] | None:
    machine = evaluator.scenario.machine
    target = machine.targets[use.tier]
    if target.array is not None:
        return _drives(evaluator, use, target)
    copies = machine.nodes if target.drives else 1
    size = -(-use.needed // (copies * _TERABYTE))
    kind = "drive" if target.drive is not None else target.kind
    profile = target.drive.id if target.drive is not None else target.id
    needed, has = formatted_apart(use.needed // copies, target.capacity)
    description = f"capacity of {use.tier} {has} → {size:,} TB (it needs {needed})"
    return description, Edit(("profiles", evaluator.named(f"{kind}/{profile}"), "capacity"), f"{size} TB")


def _drives(evaluator: Evaluator, use: TierUse, target: Target) -> tuple[str, Edit] | None:
    """Return more drives in an array, in words and as an edit; those of RAID10 come in pairs. None if none
    are enough."""
    array = target.array
    assert array is not None
    pair = 2 if array.level == 10 else 1

    def step(count: int) -> Edit:
        return Edit(("profiles", evaluator.named(f"raid/{array.id}"), "count"), pair * count)

    def room(count: int) -> dict[str, float] | None:
        left = evaluator.room(step(count))
        return {use.tier: left[use.tier]} if left and use.tier in left else None

    found = smallest_that_fits(room, start=array.count // pair, most=_MOST_DRIVES // pair)
    if found is None:
        return None
    where = "of each machine " if target.drives else ""
    return f"drives {where}in {use.tier} {array.count} → {pair * found}", step(found)


KINDS: tuple[Kind, ...] = (stages, tiers, settings, batch, context, precision, gpus, machines, capacity)
"""Kinds of changes in the order in which they are tried, free ones first."""
BOUGHT = {"gpus", "machines", "capacity"}
"""Kinds of changes that require a purchase."""
