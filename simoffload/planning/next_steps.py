"""The few changes that an answer names as the next ones: free ones first, then formats and purchases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from math import inf

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.planning.advise import EvaluatedChange, advise
from simoffload.planning.advise.options import memory, second_card
from simoffload.planning.alternatives import ANSWERS_CHANGE, ROOM, class_of, formats_of, memory_of
from simoffload.planning.costs import CostList
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.question import chosen
from simoffload.results import Change, SimulationResult, quality_of_weights
from simoffload.scenario import LoadedScenario
from simoffload.strategies import BEST, offloaded_tiers, suited_to
from simoffload.workload import Checkpointing, Inference

_SETTINGS = 4
"""Most settings that are tried for one answer: our choice, for its time."""
_MOST = 2
"""Number of changes that an answer names."""
_FORMAT = "format-"


def next_steps(evaluator: Evaluator, costs: CostList | None = None) -> tuple[EvaluatedChange, ...]:
    """Return the changes to name beside an answer, the first one first.

    Where the weights are read from storage, the first one is the largest format that avoids it, or the
    smallest where none does. Raises what ``advise`` raises.
    """
    advice = advise(evaluator, costs=costs, options=_few, pairs=False)
    of_formats = [one for one in advice.tried if one.change.key.startswith(_FORMAT)]
    free = [one for one in advice.helping if one not in of_formats and not one.extra]
    bought = [one for one in advice.helping if one.extra]
    clear = [one for one in of_formats if one.gain is not None and one.helps]
    first = clear if _stored(evaluator.scenario) else ()
    ranked = {one.change.key: one for one in (*first, *free[:1], *clear, *bought)}
    return tuple(islice(ranked.values(), _MOST))


def _stored(scenario: LoadedScenario) -> bool:
    tiers = scenario.machine.tiers
    return any(tiers[one].row.is_storage for one in offloaded_tiers(scenario.plan()))


def _few(evaluator: Evaluator, _result: SimulationResult, _costs: CostList) -> Sequence[Change]:
    scenario, work = evaluator.scenario, evaluator.workload
    if isinstance(work, Checkpointing):
        return ()
    stored = _stored(scenario)
    found = chain(
        _in_fewer_bits(evaluator) if isinstance(work, Inference) else (),
        islice(evaluator.changes("adapters"), 1),
        islice(evaluator.changes("setting"), 0 if stored else _SETTINGS),
        islice(memory(scenario), 1) if stored else (),
        second_card(scenario),
    )
    return tuple(one for one in found if not evaluator.changes_nothing(*one.edits))


def _in_fewer_bits(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the largest format whose weights are a step nearer to the GPUs, or else the smallest, under the
    best program for it: a format of the present program, or of any where the weights are on storage."""
    scenario, machine, work = evaluator.scenario, evaluator.scenario.machine, evaluator.workload
    assert isinstance(work, Inference)
    own = formats_of(evaluator, evaluator.strategy)
    stored, gpus = _stored(scenario), evaluator.strategy.gpus
    room: float = gpus * machine.tiers["hbm"].capacity
    if stored:
        room = memory_of(machine, gpus)
    elif not offloaded_tiers(evaluator.plan) or not evaluator.strategy.description.on_gpus:
        room = inf
    suited = suited_to("inference", scenario.model, machine) if stored or not own else ()
    others = (one for kind in suited for one in formats_of(evaluator, class_of(kind)))
    sizes = {name: evaluator.in_format(name) for name in dict.fromkeys((*own, *others))}
    ordered = sorted(sizes, key=lambda name: -sizes[name])
    name = next((one for one in ordered if sizes[one] <= ROOM * room), next(reversed(ordered), ""))
    if not name:
        return
    among = [evaluator.strategy.kind] if name in own and not stored else []
    sequences = work.batch_size * evaluator.strategy.replicas
    section = {"kind": BEST, "among": among, "ranks": gpus, "sequences": sequences}
    if not evaluator.strategy.description.on_gpus:
        section = scenario.document.data["strategy"]
    stored_as = evaluator.model("quantization", name)
    with suppress(InputError):
        found = chosen(scenario.edited(stored_as, Edit(("strategy",), section)))
        data, strategy = found.document.data, found.scenario.strategy
        batch = data["workload"].get("batch_size", work.batch_size)
        edits = stored_as, Edit(("strategy",), data["strategy"]), Edit.at("workload.batch_size", batch)
        title = strategy.traits.title or strategy.kind
        under = f" under {title}" if strategy.kind != evaluator.strategy.kind else ""
        text = f"weights stored as {name}{under} {ANSWERS_CHANGE}"
        yield Change("workload", text, edits, key=f"{_FORMAT}{name}", quality=quality_of_weights(name))
