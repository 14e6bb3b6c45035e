"""The smallest changes that make a scenario fit, one of each kind or several together: every one is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, groupby, islice, product
from operator import attrgetter

from simoffload.bisection import first_that_holds, smallest_that_fits
from simoffload.documents import Edit
from simoffload.errors import InputError, WorkLimitError
from simoffload.limits import keep, limited, now_doing
from simoffload.planning.alternatives import divisions, formats, replaced
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.question import loaded
from simoffload.progress import steps
from simoffload.results import HALVED, Change, Remedies, TierUse
from simoffload.scenario import LoadedScenario, ScenarioSource
from simoffload.simulation.capacity import memory_footprint
from simoffload.strategies.base import Purpose, Tunable, memory_tunables
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
    if isinstance(evaluator.workload, Training):
        yield from _first(evaluator, [_fused_norms(evaluator)], "norms")


def _fused_norms(evaluator: Evaluator) -> Change:
    """Return the change to RMSNorm in one kernel, which saves less of a step (``model.norms``)."""
    kernels = "one kernel for each RMSNorm, as of use_kernels of transformers, Liger or torchtitan"
    return Change("setting", f"norms fused ({kernels})", (evaluator.model("norms", "fused"),))


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
    """Yield the most room for tokens with which it fits, if more is asked for than prompt and output take;
    otherwise the longest sequences that fit, of which the longer one of prompt and output is cut."""
    workload = evaluator.workload
    if isinstance(workload, Checkpointing):
        return
    key, now = "sequence_length", workload.max_context
    if isinstance(workload, Inference):
        if smaller := _room(evaluator, workload):
            yield from enough(evaluator, smaller)
            return
        key, now = max(
            ("prompt_length", workload.prompt_length),
            ("output_length", workload.output_length),
            key=lambda one: one[1],
        )

    context = workload.context or 0 if isinstance(workload, Inference) else 0
    other = workload.max_context + 1 - now  # of prompt and output the one that stays

    def steps(count: int) -> tuple[Edit, ...]:
        alone = (Edit(("workload", "context"), None),) if count + other < context else ()
        return (Edit(("workload", key), count), *alone)

    evaluator.trying("shorter sequences")
    found = evaluator.largest(steps, start=now, most=now)
    if found is not None:
        yield from enough(evaluator, Change("context", f"{key} {now:,} → {found:,} tokens", steps(found)))


def _room(evaluator: Evaluator, workload: Inference) -> Change | None:
    """Return the change to the most room with which the work fits; None if it has none to give up, or does
    not fit without."""
    least, now = workload.prompt_length + workload.output_length, workload.room
    if now <= least:
        return None

    def steps(count: int) -> tuple[Edit, ...]:
        return (Edit(("workload", "context"), least + count - 1),)

    evaluator.trying("less room for tokens")
    found = evaluator.largest(steps, start=now - least, most=now - least)
    if found is None:
        return None
    return Change("context", f"context {now:,} → {least + found - 1:,} tokens", steps(found))


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
    """Yield for each other strategy its first division that fits, with unchanged weights if they fit."""
    seen = {evaluator.strategy.kind}
    for one in divisions(evaluator):
        change = None if one.kind in seen else one.on(evaluator)
        if change is not None:
            seen.add(one.kind)
            yield from enough(evaluator, change._replace(kind="strategy"))


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
        if use.row.is_gpu:
            return  # a larger GPU is another machine
        step = _memory(evaluator, use) if use.row.is_host else _storage(evaluator, use)
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
        return _drives(evaluator, use)
    copies = machine.nodes if target.drives else 1
    size = -(-use.needed // (copies * _TERABYTE))
    needed, has = formatted_apart(use.needed // copies, target.capacity)
    description = f"capacity of {use.tier} {has} → {size:,} TB (it needs {needed})"
    return description, Edit(("profiles", evaluator.named(target.device), "capacity"), f"{size} TB")


def _drives(evaluator: Evaluator, use: TierUse) -> tuple[str, Edit] | None:
    """Return more drives in an array, in words and as an edit; those of RAID10 come in pairs. None if none
    are enough."""
    target = evaluator.scenario.machine.targets[use.tier]
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


# -- one of each kind, or several -----------------------------------------------------------------


_KINDS: tuple[Kind, ...] = (stages, tiers, settings, batch, context, precision, gpus, machines, capacity)
"""Kinds of changes in the order in which they are tried, free ones first."""
_BOUGHT = {"gpus", "machines", "capacity"}
"""Kinds of changes that require a purchase."""
_MOST = 4
"""Maximum number of combined changes that are reported."""
_PAIRS, _THREES, _LORA_PAIRS, _LORA_THREES = 100, 50, 60, 30
"""Maximum number of plans for a search of combinations: our choice, seconds for the largest models."""


def smallest_changes(scenario: ScenarioSource) -> tuple[Change, ...]:
    """Return the smallest change of each kind that makes the scenario fit, and combinations where no single
    one does.

    Every change was tried on the scenario. Empty if it fits unchanged, or if nothing that was tried helps.
    Adapters, which train something else, come last. Raises InputError for what DeepSpeed would refuse.
    """
    return search_changes(loaded(scenario)).changes


def search_changes(scenario: LoadedScenario) -> Remedies:
    """Return the changes of ``smallest_changes`` that are found within the limits of the scenario, and a
    record of those tried."""
    found = _RemedySearch(Evaluator(scenario))
    stopped = ""
    try:
        _search(found)
    except WorkLimitError as error:
        stopped = str(error)
    changes = (*sorted(found.changes, key=_first_to_last), *sorted(found.adapters, key=_first_to_last))
    kept = tuple(replaced(found.evaluator, one) for one in changes)
    return Remedies(kept, tuple(found.evaluator.shared.tried), found.barred, stopped)


def first_steps(evaluator: Evaluator) -> Iterator[Change]:
    """Yield what may be the first of several changes, each as far as it goes, the smaller changes first."""
    workload = evaluator.workload
    yield from halved(evaluator)
    if isinstance(workload, Training) and not workload.gradient_checkpointing:
        keys = ("workload", "gradient_checkpointing")
        yield Change("setting", "gradient_checkpointing set", (Edit(keys, True),))
    last = list(evaluator.changes("partition"))[-1:]
    yield from last
    every = evaluator.changes("tier")
    moves = [one for one in every if one.same_work and (not last or last[0].description in one.description)]
    yield from sorted(moves, key=lambda step: len(step.edits))
    if not isinstance(workload, Checkpointing) and workload.batch_size > 1:
        yield Change("batch", f"batch {workload.batch_size} → 1{each(evaluator)}", evaluator.batch(1))


@dataclass
class _RemedySearch:
    """What a search has found so far."""

    evaluator: Evaluator
    changes: list[Change] = field(default_factory=list)
    adapters: list[Change] = field(default_factory=list)
    barred: tuple[str, ...] = ()
    """Sentences about changes of the unchanged scenario that are impossible."""


@limited
def _search(found: _RemedySearch) -> None:
    evaluator, changes = found.evaluator, found.changes
    keep(evaluator.scenario.scenario.engine.limits)
    now_doing("planning")
    if all(use.fits for use in memory_footprint(evaluator.scenario)):
        return
    for kind in steps((*_KINDS, other_strategies), lambda kind: kind.__name__.replace("_", " ")):
        changes += kind(evaluator)
    found.barred = tuple(evaluator.shared.barred)
    if all(change.kind in _BOUGHT for change in changes):  # also report what costs nothing
        several = _of_several(evaluator)
        changes += [one for one in several if not changes or not _is_bought(one)]
    found.adapters += adapters(evaluator)
    if not found.adapters and all(_parts(change) for change in changes):
        first = list(adapters_of(evaluator))
        found.adapters += islice(_pairs(evaluator, first, _KINDS, most=_LORA_PAIRS), len(first))
        if not changes and not found.adapters:
            both = product(first[-1:], first_steps(evaluator))
            found.adapters += islice(_threes(evaluator, both, most=_LORA_THREES), _MOST)


def _of_several(evaluator: Evaluator) -> list[Change]:
    """Return pairs of changes, and triples where no pair suffices without a purchase."""
    steps = list(first_steps(evaluator))
    pairs = list(islice(_pairs(evaluator, steps, _KINDS[2:], most=_PAIRS), _MOST))
    if not all(map(_is_bought, pairs)):
        return pairs
    return [*pairs, *islice(_threes(evaluator, combinations(steps, 2), most=_THREES), _MOST)]


def _is_bought(change: Change) -> bool:
    return change.kind.rpartition(" + ")[2] in _BOUGHT


def _first_to_last(change: Change) -> tuple[int, int]:
    """Return the order of report: changes that keep the answers, and single ones, before others."""
    return change.rank, _parts(change)


def _parts(change: Change) -> int:
    """Return the number of kinds of changes after the first."""
    return change.kind.count(" + ")


def _pairs(
    evaluator: Evaluator, steps: Iterable[Change], kinds: Sequence[Kind], *, most: int
) -> Iterator[Change]:
    """Yield each step with the first change that then suffices; at most ``most`` plans are made."""
    before = evaluator.shared.planned
    for step in steps:
        if evaluator.shared.planned - before >= most:
            return
        alone = tuple(enough(evaluator, step))  # a setting that does more than the remedies say
        if alone:
            yield from alone
            continue
        try:
            first = evaluator.changed_by(*step.edits)
            second = next((change for kind in kinds for change in kind(first)), None)
        except InputError:  # not a step of this scenario
            continue
        if second is not None:
            yield step.followed_by(second)


def _threes(evaluator: Evaluator, both: Iterable[tuple[Change, Change]], *, most: int) -> Iterator[Change]:
    """Yield two steps with the first setting, length or precision that then suffices."""
    steps = (one.with_(other) for one, other in both if not _same_keys(one, other))
    return _pairs(evaluator, steps, (settings, context, precision), most=most)


def _same_keys(one: Change, other: Change) -> bool:
    mine, others = ({each.path for each in step.edits} for step in (one, other))
    return not mine.isdisjoint(others)
