"""Search for the best division of the weights between GPUs and offload, under every strategy and format."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple

from simoffload.bisection import first_that_holds
from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.models import ModelShape
from simoffload.models.quantization import QUANTIZATIONS, quantized
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.serving import ANSWERS_CHANGE, formats, together, weight_formats
from simoffload.results import Change, peak_uses, quality_of_weights
from simoffload.scenario import LoadedScenario
from simoffload.strategies import Strategy, strategy_for, strategy_of
from simoffload.strategies.held import memory_stages
from simoffload.strategies.tunables import Tunable
from simoffload.workload import Inference


class _Form(NamedTuple):
    """A _Form is the model with its weights stored in one format."""

    name: str
    """Name of the format; "" for the scenario's own."""
    edits: tuple[Edit, ...]
    model: ModelShape


def other_ways(evaluator: Evaluator) -> Iterator[Change]:
    """Yield other formats, GPUs that hold the weights, and ``splits``, as options of ``advise``."""
    yield from (one._replace(kind="workload") for one in formats(evaluator))
    yield from together(evaluator)
    yield from splits(evaluator)


def splits(evaluator: Evaluator) -> Iterator[Change]:
    """Yield, for each strategy of inference, number of GPUs and format of the weights, the split with the
    most weights on the GPUs that fits: on the GPUs of the scenario, and on all of its machine.

    Only memory is calculated: a split with more weights on the GPUs is not slower. Other tiers of
    the scenario's own strategy are not splits.
    """
    scenario, machine = evaluator.scenario, evaluator.scenario.machine
    if not isinstance(evaluator.workload, Inference):
        return
    forms: dict[str, _Form] = {"": _Form("", (), scenario.model)}
    for kind in strategy_for("inference"):
        strategy = strategy_of(kind)
        assert strategy is not None
        for gpus in dict.fromkeys((evaluator.strategy.gpus, machine.gpus)):
            for name in ("", *weight_formats(scenario, strategy)):
                if name not in forms:
                    stored = evaluator.model("quantization", name)
                    forms[name] = _Form(name, (stored,), quantized(scenario.model, QUANTIZATIONS[name]))
                form, work = forms[name], evaluator.workload
                for alternatives in strategy.instead(evaluator.strategy, form.model, work, machine, gpus):
                    largest = (_largest(scenario, strategy, one, form) for one in alternatives)
                    for one in islice(chain.from_iterable(largest), 1):
                        key = "-".join(filter(None, (f"split-{kind}-{gpus}", one.key, name)))
                        yield one._replace(key=key)


def of_other_strategies(evaluator: Evaluator) -> Iterator[Change]:
    """Yield for each strategy but the scenario's the first of ``splits``, with unchanged weights if they
    fit."""
    seen = {evaluator.strategy.kind}
    for change in splits(evaluator):
        kind = _section(change)["kind"]
        if kind not in seen:
            seen.add(kind)
            yield change._replace(kind="strategy")


def _largest(
    scenario: LoadedScenario, strategy: type[Strategy], tunable: Tunable, form: _Form
) -> Iterator[Change]:
    """Yield the first change of a division that fits, if any does: of those after the ones for which HBM is
    too small, and before those for which the other tiers are."""
    if tunable.purpose != "division":
        return
    values, work = tuple(tunable.values), scenario.scenario.workload
    assert isinstance(work, Inference)
    if len(values) == 1 and strategy is type(scenario.scenario.strategy):
        return  # another tier of its own

    def divided(index: int) -> Strategy:
        return strategy.model_validate(_section(tunable.change(values[index])))

    replicas = divided(-1).replicas
    batch, rest = divmod(work.batch_size * scenario.scenario.strategy.replicas, replicas)
    if rest:  # its replicas cannot have equal parts of the sequences
        return
    batched = () if batch == work.batch_size else (Edit.at("workload.batch_size", batch),)
    work = scenario.edited(*batched).scenario.workload

    @cache
    def too_small(index: int) -> frozenset[str]:
        """Return the kinds of the tiers that are too small; HBM for what the strategy refuses."""
        try:
            plan = divided(index).plan(form.model, work, scenario.machine)
        except InputError:
            return frozenset({"hbm"})
        uses = peak_uses(memory_stages(plan), scenario.machine.tiers)
        return frozenset(use.kind for use in uses if not use.fits)

    # Other tiers need less with every part on the GPUs: if those do not fit beside the most that HBM takes,
    # they never do.
    index: int | None = 0
    if len(values) > 1 and too_small(0):
        # Where both are too small, HBM is for all with more on the GPUs, another tier for all with less.
        if len(lacking := too_small((len(values) + 1) // 2)) > 1 and "hbm" in lacking:
            return
        index = first_that_holds(range(1, len(values)), lambda one: "hbm" not in too_small(one))
    if index is None or too_small(index):
        return
    change = tunable.change(values[index])
    description = change.description + (f", stored as {form.name} {ANSWERS_CHANGE}" if form.name else "")
    edits = (*form.edits, *change.edits, *batched)
    quality = quality_of_weights(form.name) if form.name else ""
    yield change._replace(description=description, edits=edits, quality=quality)


def _section(change: Change) -> dict[str, Any]:
    """Return the section ``strategy`` that a change writes."""
    return next(edit.value for edit in change.edits if edit.path == ("strategy",))
