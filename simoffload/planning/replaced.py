"""Changes that replace the whole strategy: what they keep of the present one, and what they must state."""

from __future__ import annotations

from collections.abc import Iterator

from simoffload.errors import InputError
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.serving import ANSWERS_CHANGE
from simoffload.results import Change, quality_of_cache
from simoffload.scenario import Scenario


def replaced(evaluator: Evaluator, change: Change) -> Change:
    """Return a change of the strategy that keeps the key-value cache as it is, where the other program has
    such a cache and it fits as well, and otherwise states what becomes of it.

    Other numbers of GPUs, or of sequences on all of them, are stated, too. A change that leaves the strategy,
    or that is refused, is returned as it is.
    """
    if not any(edit.path == ("strategy",) for edit in change.edits):
        return change
    change = _with_cache(evaluator, change)
    try:
        there = evaluator.edited(*change.edits).scenario
    except InputError:
        return change
    description = ", ".join((change.description, *_differences(evaluator, change, there)))
    change = change._replace(description=description)
    stored = there.strategy.description.cache_format
    if stored == evaluator.strategy.description.cache_format:
        return change
    if change.same_work:
        change = change._replace(description=f"{description} {ANSWERS_CHANGE}")
    return change.of_quality(quality_of_cache(stored))


def _with_cache(evaluator: Evaluator, change: Change) -> Change:
    cache = evaluator.scenario.document.data["strategy"].get("kv_cache")
    edits = tuple(
        edit._replace(value={"kv_cache": cache, **edit.value}) if edit.path == ("strategy",) else edit
        for edit in change.edits
    )
    uses = evaluator.needs(*edits) if cache else None
    if uses is None or (evaluator.fits(*change.edits) and not all(one.fits for one in uses)):
        return change
    return change._replace(edits=edits, uses=uses if change.uses else ())


def _differences(evaluator: Evaluator, change: Change, there: Scenario) -> Iterator[str]:
    now, other = evaluator.strategy, there.strategy
    if "GPU" not in change.description and other.gpus != now.gpus:
        yield f"{other.gpus} GPU{'s' * (other.gpus > 1)} instead of {now.gpus}"
    sequences = [
        one.replicas * getattr(work, "batch_size", 0)
        for one, work in ((now, evaluator.workload), (other, there.workload))
    ]
    if "batch" not in change.description and sequences[0] != sequences[1]:
        yield f"{sequences[1]} sequences at once instead of {sequences[0]}"
    before, after = now.description, other.description
    if (after.cache, after.cache_format) != (before.cache, before.cache_format):
        yield f"key-value cache on {after.cache} instead of {before.cache}"
