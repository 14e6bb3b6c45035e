"""Search for the best division of the weights between GPUs and offload, under every strategy and format."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from typing import NamedTuple

from simoffload.bisection import first_that_holds
from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.models import ModelShape
from simoffload.models.quantization import QUANTIZATIONS, quantized
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.serving import ANSWERS_CHANGE, formats, together, weight_formats
from simoffload.results import Change, peak_uses, quality_of_weights
from simoffload.scenario import LoadedScenario
from simoffload.strategies import Split, Strategy, strategy_for, strategy_of
from simoffload.strategies.held import memory_stages
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
                for alternatives in strategy.splits(forms[name].model, machine, gpus=gpus):
                    possible = [one for one in alternatives if one.most or kind != evaluator.strategy.kind]
                    largest = (_largest(scenario, strategy, split, forms[name]) for split in possible)
                    for one in islice(chain.from_iterable(largest), 1):
                        way = next((split.key for split in possible), "")
                        key = "-".join(filter(None, (f"split-{kind}-{gpus}", way, name)))
                        yield one._replace(key=key)


def of_other_strategies(evaluator: Evaluator) -> Iterator[Change]:
    """Yield for each strategy but the scenario's the first of ``splits``, with unchanged weights if they
    fit."""
    seen = {evaluator.strategy.kind}
    for change in splits(evaluator):
        kind = next(edit.value["kind"] for edit in change.edits if edit.path == ("strategy",))
        if kind not in seen:
            seen.add(kind)
            yield change._replace(kind="strategy")


def _largest(
    scenario: LoadedScenario, strategy: type[Strategy], split: Split, form: _Form
) -> Iterator[Change]:
    """Yield the change to the largest number of a split that fits, if any does: of the numbers between those
    for which the other tiers are too small and those for which HBM is."""
    replicas = strategy.model_validate(split.section(0)).replicas
    work = scenario.scenario.workload
    assert isinstance(work, Inference)
    batch, rest = divmod(work.batch_size * scenario.scenario.strategy.replicas, replicas)
    if rest:  # its replicas cannot have equal parts of the sequences
        return
    batched = () if batch == work.batch_size else (Edit.at("workload.batch_size", batch),)
    work = scenario.edited(*batched).scenario.workload

    @cache
    def too_small(number: int) -> frozenset[str]:
        """Return the kinds of the tiers that are too small; HBM for what the strategy refuses."""
        try:
            plan = strategy.model_validate(split.section(number)).plan(form.model, work, scenario.machine)
        except InputError:
            return frozenset({"hbm"})
        uses = peak_uses(memory_stages(plan), scenario.machine.tiers)
        return frozenset(use.kind for use in uses if not use.fits)

    # Other tiers need less with every part on the GPUs: if those do not fit beside the most that HBM takes,
    # they never do.
    number: int | None = split.most
    if number and too_small(number):
        number = first_that_holds(range(number - 1, -1, -1), lambda one: "hbm" not in too_small(one))
    if number is None or too_small(number):
        return
    description = split.description(number) + (
        f", stored as {form.name} {ANSWERS_CHANGE}" if form.name else ""
    )
    edits = (*form.edits, Edit(("strategy",), split.section(number)), *batched)
    quality = quality_of_weights(form.name) if form.name else ""
    yield Change("placement", description, edits, quality=quality)
