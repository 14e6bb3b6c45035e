"""Drafts of models of unknown families, from the keys of their config.json.

A draft is marked wherever it appears: its name ends in "(draft)", and results have a warning with every key
that was not understood. Where such a key describes tensors, there is no draft at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from simoffload.documents import Document, Location, listing, quoted, validate
from simoffload.errors import InputError, Problem
from simoffload.models.families.base import FamilyConfig
from simoffload.models.families.draft import DraftConfig
from simoffload.models.families.linear_attention import LINEAR, TIME_IS_A_BOUND
from simoffload.models.families.synonyms import (
    FURTHER_TOKENS,
    NOT_COUNTED,
    decides,
    is_known,
    is_taken_lightly,
    written,
)

MARK = " (draft)"
"""End of the name of a draft."""


def left_out(outer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence about the parts of a model that takes more than text, of which only the language
    model is counted; () if it has none."""
    parts = [key.removesuffix("_config") for key in outer if NOT_COUNTED.search(key) and outer[key]]
    if not parts:
        return ()
    return (f"only the language model is counted, without what {listing(parts)} and their projectors have",)


def drafted(
    document: Document, at: Location, overrides: Mapping[str, Any]
) -> tuple[FamilyConfig, tuple[str, ...]]:
    """Return the configuration that the keys describe, with ``overrides``, and the notes about it.

    Raises InputError for sizes that are missing or cannot be, and for keys that describe tensors and are not
    understood.
    """
    outer = dict(document.data)
    inner = DraftConfig.replaced(_at(outer, at), overrides)
    unused = _unused(inner, outer if at else {})
    not_understood = {key: value for key, value in unused.items() if not is_taken_lightly(key, value)}
    strange = {key: value for key, value in not_understood.items() if decides(key, value)}
    if inner.get("is_encoder_decoder"):
        strange["is_encoder_decoder"] = inner["is_encoder_decoder"]
    if strange:
        raise InputError([_refused(document, at, inner, strange)])
    if overrides:
        config = validate(Document(document.path, {"model": inner}), DraftConfig, at=("model",))
    else:
        config = validate(document, DraftConfig, at=at)
    lightly = [key for key in unused if key not in not_understood]
    return config, (
        _status(config, not_understood, lightly),
        *_notes(config, inner, outer if at else {}),
    )


def _at(data: Mapping[str, Any], at: Location) -> Mapping[str, Any]:
    inner: Any = data
    for key in at:
        inner = inner[key]
    return dict(inner)


def _unused(inner: Mapping[str, Any], outer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a draft neither uses nor knows to have no influence."""
    known = DraftConfig.known_keys()
    return {
        key: value
        for key, value in [*outer.items(), *inner.items()]
        if key not in known and value is not None and not is_known(key, value) and not _counted_out(key)
    }


def _counted_out(key: str) -> bool:
    """Return whether a key belongs to parts that have a note of their own."""
    return (NOT_COUNTED.search(key) or FURTHER_TOKENS.search(key)) is not None


def _refused(
    document: Document, at: Location, inner: Mapping[str, Any], strange: Mapping[str, Any]
) -> Problem:
    """Return the problem with keys that describe tensors and are not understood."""
    keys = listing([written(key, value) for key, value in strange.items()])
    sizes = {key: value for key, value in inner.items() if key not in strange}
    try:
        width = DraftConfig.model_validate(sizes).full_cache_bytes
        bound = f" (a draft without them would cache at most {width:,} bytes per token in 16 bits)"
    except ValidationError:
        bound = ""
    first = next(iter(strange))
    text = (
        f"no draft, as {'these describe' if len(strange) > 1 else 'this describes'} tensors that a draft "
        f"would lack: {keys}{bound}; to draft it nevertheless without them, write null instead of the "
        "value, in a copy of the file or as a key of model"
    )
    return document.problem((*at, first), text)


def _status(config: DraftConfig, not_understood: Mapping[str, Any], lightly: list[str]) -> str:
    """Return the sentence that marks a draft, with what became of each key that it does not use."""
    keys = "; ".join(written(key, value) for key, value in not_understood.items())
    why = f"not understood: {keys}" if keys else "every other key was used or has no influence on sizes"
    taken = f"; taken by their names to have no influence on sizes: {', '.join(lightly)}" if lightly else ""
    kind = quoted(config.model_type)
    return (
        f"all sizes and times are those of a draft, as the family {kind} is not known; {why}{taken}. Tensors "
        "that no key names are not in it"
    )


def _notes(config: DraftConfig, inner: Mapping[str, Any], outer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return sentences about what a draft assumes, and what is not in it."""
    sentences = [f"draft: {one}" for one in config.assumptions]
    further = [written(key, value) for key, value in inner.items() if FURTHER_TOKENS.search(key) and value]
    if further:
        sentences.append(f"draft: modules that predict further tokens are not counted ({'; '.join(further)})")
    positions = config.max_position_embeddings
    if positions and not any("rope" in key or "rotary" in key for key in inner):
        table = positions * config.hidden_size
        sentences.append(
            f"draft: no key states rotary positions; learned ones ({table:,} parameters) are not in it"
        )
    if LINEAR in config.kinds_of_attention:
        sentences.append(f"draft: {TIME_IS_A_BOUND}")
    return (*sentences, *(f"draft: {one}" for one in left_out(outer or inner)))


def how_to_draft(document: Document, at: Location, how: str) -> str:
    """Return how to draft a model of an unknown family from the keys at a place, or why that is not possible;
    ``how`` is what to write for model."""
    keys = DraftConfig.replaced(_at(document.data, at), {})
    unused = _unused(keys, {})
    open_ = "; ".join(
        written(key, value) for key, value in unused.items() if not is_taken_lightly(key, value)
    )
    try:
        drafted(document, at, {})
    except InputError as error:
        first = error.problems[0]
        return f"its keys (draft: true) give no draft either: {first.key.split('.')[-1]}: {first.message}"
    named = f", of which these are not understood: {open_}" if open_ else ""
    return f"for a draft from its keys{named}, write model: {how} (simoffload models show: --draft)"
