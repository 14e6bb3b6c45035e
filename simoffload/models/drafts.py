"""Drafts of models of unknown families, from the keys of their config.json.

A draft is marked wherever it appears: its name ends in "(draft)", and results have a warning with every key
that was not understood. Where such a key describes tensors, there is no draft at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    has_influence,
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
    not_understood = dict(_not_understood(inner, outer if at else {}))
    strange = {key: value for key, value in not_understood.items() if decides(key, value)}
    if inner.get("is_encoder_decoder"):
        strange["is_encoder_decoder"] = inner["is_encoder_decoder"]
    if strange:
        raise InputError([_refused(document, at, inner, strange)])
    if overrides:
        config = validate(Document(document.path, {"model": inner}), DraftConfig, at=("model",))
    else:
        config = validate(document, DraftConfig, at=at)
    return config, _notes(config, inner, outer if at else {}, not_understood)


def _at(data: Mapping[str, Any], at: Location) -> Mapping[str, Any]:
    inner: Any = data
    for key in at:
        inner = inner[key]
    return dict(inner)


def _not_understood(inner: Mapping[str, Any], outer: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    known = DraftConfig.known_keys()
    for keys in (inner, outer):
        for key, value in keys.items():
            plain = key not in known and has_influence(key)
            if plain and value is not None and not NOT_COUNTED.search(key) and not FURTHER_TOKENS.search(key):
                yield key, value


def _refused(
    document: Document, at: Location, inner: Mapping[str, Any], strange: Mapping[str, Any]
) -> Problem:
    """Return the problem with keys that describe tensors and are not understood."""
    keys = listing([written(key, value) for key, value in strange.items()])
    sizes = {key: value for key, value in inner.items() if key not in strange}
    try:
        width = DraftConfig.model_validate(sizes).full_cache_bytes
        bound = f" (its cache has at most {width:,} bytes per token in 16 bits, as a draft)"
    except ValidationError:
        bound = ""
    first = next(iter(strange))
    text = (
        f"no draft, as {'these describe' if len(strange) > 1 else 'this describes'} tensors that a draft "
        f"would lack: {keys}{bound}; to draft it nevertheless without them, write null instead of the "
        "value, in a copy of the file or as a key of model"
    )
    return document.problem((*at, first), text)


def _notes(
    config: DraftConfig, inner: Mapping[str, Any], outer: Mapping[str, Any], not_understood: Mapping[str, Any]
) -> tuple[str, ...]:
    keys = "; ".join(written(key, value) for key, value in not_understood.items())
    why = f"not understood: {keys}" if keys else "every key was used or has no influence on sizes"
    kind = quoted(config.model_type)
    first = (
        f"all sizes and times are those of a draft, as the family {kind} is not known; {why}. Tensors that "
        "no key names are not in it"
    )
    sentences = [
        first,
        *(f"draft: {one}" for one in config.assumptions),
    ]
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


def how_to_draft(config: Mapping[str, Any], written_as: str) -> str:
    """Return how to draft a model of an unknown family."""
    inner = config.get("text_config")
    sizes = inner if isinstance(inner, Mapping) else config
    known = DraftConfig.known_keys()
    open_ = "; ".join(
        written(key, value)
        for key, value in sizes.items()
        if value is not None and key not in known and has_influence(key)
    )
    keys = f", of which these are not understood: {open_}" if open_ else ""
    how = f"write model: {written_as} (simoffload models show: --draft)"
    return f"for a draft from its keys{keys}, {how}"
