"""Models that have a name: the released sizes of ``sizes.yaml``, and what may be written for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache, lru_cache
from math import log, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field, TypeAdapter

from simoffload.documents import (
    Document,
    Frozen,
    candidates,
    either,
    folded,
    listing,
    named,
    parse_yaml,
    quoted,
)

if TYPE_CHECKING:
    from simoffload.models.quantization import Quantization

# -- names of releases -----------------------------------------------------------------------------

_LONGEST = 200  # characters of a name; no model has as many
_SEPARATORS = re.compile(r"[-_\s]+")
_RELEASE = re.compile(
    r"-(instruct|chat|thinking|base|hf|it|pt|text|latest|preview|abliterated|uncensored|\d{4}|\d+[km])$"
)
"""Last word of a name that does not change the shape: how the model was tuned, the date of a release, and for
how long a context."""
_SIZE = re.compile(r"[ae]?\d[\dx.]*[bmt](?![a-z0-9])")
"""Beginning of a tag that is a number of parameters: 70b, 8x7b, e4b."""
_DISTINGUISHING = re.compile(r"-\d{4}$|-\d+[km](?=-|$)")
"""Words among these that tell some models apart: dates and contexts."""
_FORM = re.compile(
    r"[-.]((?:nv|mx)?fp[468](?:-moe|a16)?|bf16|fp?16|int[48]|[348]-?bits?|w\d+a\d+"
    r"|(?:ud-)?(?:i?q|tq)[1-8](?:-[0-9klmnsx]+)*|awq|gptq|gguf|ggml|mlx|bnb|exl[23]|hqq|qat|quantized|unquantized|dynamic|block|g(?:roup)?\d+|autoround"
    r"|nf4|nf4-dq|onnx|kv|i1|imatrix|unsloth|\d(?:\.\d+)?bpw|w4afp8)$"
)
"""Last word of a name that says in which form the weights are stored."""


class Meaning(NamedTuple):
    """What a name may mean."""

    listed: tuple[str, ...]
    """The names of rows; () for none."""
    form: tuple[str, ...] = ()
    """Words of the name for another form of the weights: ("fp8",)."""


def meaning(wanted: str, rows: Mapping[str, str]) -> Meaning:
    """Return which rows a name means: the row of that name, of the name without words of a release, or all
    rows that the name begins.

    ``rows`` maps names and aliases in lower case to their rows. A date of a release and the length of its
    context are not dropped for a row whose own names have another one, because those are other models
    (Mistral-Small-Instruct-2409 and -2501).
    """
    text, dated = _SEPARATORS.sub("-", wanted.strip().lower()), False
    forms: list[str] = []
    while True:
        found = tuple(dict.fromkeys(rows[name] for name in named(text, rows)))
        if found and not (dated and _is_dated(found[0], rows)):
            return Meaning(found, tuple(reversed(forms)))
        if found:
            return Meaning(())
        if match := _FORM.search(text):
            forms.append(match[1])
        else:
            match = _RELEASE.search(text)
            if match is None:
                break
            dated = dated or match[1][0].isdigit()
        text = text[: match.start()]
    begun = folded(text)
    if dated or not begun:
        return Meaning(())
    longer = (name for name in rows if name.startswith(f"{text}-") or folded(name).startswith(f"{begun}-"))
    return Meaning(tuple(dict.fromkeys(rows[name] for name in longer)), tuple(reversed(forms)))


def form_words(name: str) -> tuple[str, ...]:
    """Return the words at the end of a name that say in which form the weights are stored."""
    text, found = f"-{_SEPARATORS.sub('-', name.strip().lower())}"[-_LONGEST:], list[str]()
    text = re.sub(r"(?<=\d)b(\d)(?![\w.])", r".\1b", text)  # 7b1 are 7.1 billions
    while match := _FORM.search(text) or _RELEASE.search(text):
        if match.re is _FORM:
            found.append(match[1])
        text = text[: match.start()]
    return tuple(reversed(found))


def _is_dated(row: str, rows: Mapping[str, str]) -> bool:
    return any(_DISTINGUISHING.search(name) for name, known in rows.items() if known == row)


# -- sizes -----------------------------------------------------------------------------------------


class Size(Frozen):
    """A Size is one row of ``sizes.yaml``: a released model."""

    family: str
    source: str
    """Where the configuration is published."""
    year: int | None = None
    """Year of the release; None for shapes that were not."""
    aliases: tuple[str, ...] = ()
    """Other names of the same shape, without their organisation."""
    distinct: dict[str, str] = Field(default_factory=dict)
    """Releases whose names look like one of this shape but are not, with the reason."""
    config: dict[str, Any]
    """Configuration in Hugging Face's keys; checked by the family."""
    around: dict[str, Any] = Field(default_factory=dict)
    """Of a model that takes more than text, the keys around these that describe its other parts."""
    notes: tuple[str, ...] = ()
    """Sentences about what of the released model is not counted."""
    quantization_config: dict[str, Any] | None = None
    """Section of the released config.json; None where the weights have 16 bits."""
    expert_dtype: str | None = None
    """Type of the released experts, where it is not that of the section."""

    @property
    def names(self) -> tuple[str, ...]:
        """All other names: the aliases, and the one on the Hugging Face hub that ``source`` gives."""
        hub = re.match(r"https://huggingface\.co/[^/\s]+/([^/\s]+)", self.source)
        return (*self.aliases, *(hub.groups() if hub else ()))

    @property
    def released(self) -> Quantization | None:
        """Quantization of the released weights; None where they have 16 bits."""
        if self.quantization_config is None:
            return None
        from simoffload.models.quantization_config import KEY, read_quantization

        keys = {KEY: self.quantization_config, "expert_dtype": self.expert_dtype}
        return read_quantization(Document("sizes.yaml", keys))


@cache
def _sizes() -> dict[str, Size]:
    text = Path(__file__).with_name("sizes.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Size]).validate_python(parse_yaml(text, name="sizes.yaml").data)


@cache
def _canonical() -> dict[str, str]:
    """Map every name and alias, in lower case, to the name of its row."""
    return {name.lower(): known for known, size in _sizes().items() for name in (known, *size.names)}


def list_models() -> tuple[str, ...]:
    """Return the names that a scenario may use, in the order of ``sizes.yaml``."""
    return tuple(_sizes())


def is_model(name: str) -> bool:
    """Return whether a text is the name of one model, as :func:`find_model` reads it."""
    try:
        find_model(name)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1024)
def canonical_model(name: str) -> str:
    """Return the name in the list of models that a text means, with ":" and the form of the weights if it
    says another one than that of the release; the text itself where it means none."""
    try:
        found = find_model(name)
    except ValueError:
        return name
    return found.name if found.form is None else f"{found.name}:{found.form}"


def resembled_model(name: str) -> str:
    """Return why a name that says of itself what it is means no model: several begin so, or its weights have
    a form that is not known; "" for any other text."""
    text = _text(name)
    if _distinct(text.model) or _meant(text).listed:
        try:
            find_model(name)
        except ValueError as error:
            return str(error)
    return ""


def resembles_model(name: str) -> bool:
    """Return whether a text names a listed model, whatever form of its weights it says."""
    return len(_meant(_text(name)).listed) == 1


def similar_models(name: str) -> str:
    """Return ``; did you mean …?`` with the models whose names begin like a text, or else say of themselves
    most nearly the same: the word of their family, its version, and the number of parameters; "" without
    any."""
    text, rows = _text(name), list(_sizes())
    joined = f"{text.model}-{text.tag}".rstrip("-")
    if any(folded(row).startswith(folded(joined)) for row in rows if joined):
        return candidates(joined, rows)
    wanted = _parts_of_name(joined)
    if not wanted.family:
        found = [row for row in rows if wanted.billions and _parts_of_name(row).billions == wanted.billions]
    else:
        families = {_parts_of_name(row).family for row in rows}
        near = get_close_matches(wanted.family, families, n=1, cutoff=_MISSPELT)
        family = next(iter(near), "")
        far = {row: _parts_of_name(row).far(wanted) for row in rows if _parts_of_name(row).family == family}
        found = [row for row, one in far.items() if one == min(far.values())]
    return f"; did you mean {either([quoted(row) for row in found[:_MOST_NAMED]])}?" if found else ""


_MISSPELT = 0.8
"""Likeness of the words of a family, from which one is taken to be another misspelt: our choice."""
_MOST_NAMED = 3
"""Models that a message names: our choice."""
_PART_OF_NAME = re.compile(r"(?<![a-z0-9.])a\d+b|\d[\d.]*(?:x\d[\d.]*)?[bmt](?![a-z])|[a-z]+|\d+(?:\.\d+)*")
"""Parts of a name: the active parameters, a number of parameters, a word, another number."""
_UNITS = {"m": 1e-3, "b": 1.0, "t": 1e3}


class _NameParts(NamedTuple):
    """What a name says of a model."""

    family: str
    """The first word of the name."""
    version: float | None
    others: frozenset[str]
    """Further words of the name."""
    billions: float | None

    def far(self, other: _NameParts) -> float:
        """Return how much another name of the family differs from this one, which is listed (our choice): a
        word that is not in it by 1, a word too many by a tenth, versions and sizes by 0 to 1."""
        versions, sizes = 0.5, 0.5  # of which only one name has one
        if self.version is not None and other.version is not None:
            apart = abs(self.version - other.version)
            versions = apart / (1 + apart)
        elif self.version is other.version:
            versions = 0.0
        if self.billions and other.billions:
            sizes = min(1.0, abs(log(self.billions / other.billions)))
        elif self.billions is other.billions:
            sizes = 0.0
        lacking, more = other.others - self.others, self.others - other.others
        return round(len(lacking) + len(more) / 10 + versions + sizes, 6)


@lru_cache(maxsize=1024)
def _parts_of_name(name: str) -> _NameParts:
    text = f"-{_SEPARATORS.sub('-', name.strip().lower())}"[-_LONGEST:]
    text = re.sub(r"(?<=\d)b(\d)(?![\w.])", r".\1b", text)  # 7b1 are 7.1 billions
    while match := _FORM.search(text) or _RELEASE.search(text):
        text = text[: match.start()]
    terms, version, billions = [], None, None
    for part in _PART_OF_NAME.findall(text):
        if part.isalpha():
            terms.append(part)
        elif part[-1] in _UNITS and part[0].isdigit():
            sizes = [float(one.strip(".") or 0) for one in part[:-1].split("x") if one.count(".") < _MANY]
            billions = billions or prod(sizes) * _UNITS[part[-1]]
        elif version is None and part[0].isdigit() and part.count(".") < _MANY:
            version = float(part)
    return _NameParts(terms[0] if terms else "", version, frozenset(terms[1:]), billions)


_MANY = 2
"""Points that a number has not."""


class _Typed(NamedTuple):
    """A _Typed name is what is written before and after the colon of a name, without its organisation."""

    model: str
    tag: str = ""
    of_ollama: bool = False
    """Whether it can be a tag of Ollama's library, which has no organisations."""


def _text(name: str) -> _Typed:
    owner, _, last = name.strip().rstrip("/").rpartition("/")
    text, _, tag = last[:_LONGEST].lower().rpartition("--")[2].partition(":")
    return _Typed(text, tag, ":" in last and owner.lower() in ("", "library", "ollama.com/library"))


@cache
def _organisations() -> frozenset[str]:
    """Return the owners of models on the Hugging Face hub, with which some names of files begin."""
    sources = (re.match(r"https://huggingface\.co/([^/\s]+)/", size.source) for size in _sizes().values())
    return frozenset(found[1].lower() for found in sources if found)


def _meant(text: _Typed) -> Meaning:
    """Return which rows a text means, and the words of the name and the tag for the form of the weights."""
    if _distinct(text.model):
        return Meaning(())
    found = Meaning(())
    for model in (text.model, *_without_owner(text.model)):
        if text.tag and (joined := meaning(f"{model}-{text.tag}", _canonical())).listed:
            return joined
        found = found if found.listed else meaning(model, _canonical())
    if text.tag and not _SIZE.match(text.tag):  # it is no part of the name, so it must say the form
        return found._replace(form=(*found.form, _SEPARATORS.sub("-", text.tag)))
    return Meaning(()) if text.tag else found


def _without_owner(model: str) -> tuple[str, ...]:
    owner, _, rest = model.partition("_")
    return (rest,) if rest and owner in _organisations() else ()


def _distinct(wanted: str) -> str:
    """Return why a name means none of the rows that it resembles; "" where nothing is known against it."""
    reasons = {name: why for size in _sizes().values() for name, why in size.distinct.items()}
    return next((reasons[name] for name in named(wanted, reasons)), "")


def _not_listed(name: str, meant: Meaning) -> ValueError:
    """Return the error for a name that means no row, or several."""
    if meant.listed:
        return ValueError(f"{quoted(name)} may be {listing(list(meant.listed))}; write which")
    hint = similar_models(name) or f"; known: {listing(list(_sizes()))} (simoffload models list)"
    why = _distinct(_text(name).model)
    return ValueError(f"unknown model {quoted(name)}{why and f': {why}'}{hint}")


class NamedModel(NamedTuple):
    """A NamedModel is what a text names."""

    name: str
    """Name of the row of ``sizes.yaml``."""
    size: Size
    form: str | None = None
    """Form of the weights that the text says (``quantization``, "none" for 16 bits); None for that of the
    release."""
    note: str = ""
    """Sentence about what was taken for the form."""


@lru_cache(maxsize=1024)
def find_model(name: str) -> NamedModel:
    """Return what a text names: a model by name, alias, id on the Hugging Face hub or tag of Ollama, and the
    form of its weights if the text says one.

    Case, separators, an organisation before the last "/" and words of a release do not matter; the beginning
    of a name is enough where only one begins so. Raises ValueError, with the nearest names, for an unknown
    one, one that may be several, and a form that is not known.
    """
    text = _text(name)
    meant = _meant(text)
    if len(meant.listed) != 1:
        raise _not_listed(name, meant)
    row, size = meant.listed[0], _sizes()[meant.listed[0]]
    terms = meant.form or (("gguf",) if text.of_ollama else ())
    if not terms:
        return NamedModel(row, size)
    from simoffload.models.quantization import form_of

    form, note, wrong, instead = form_of(terms, size.released)
    if wrong:
        write = either([*(f"{row}:{one}" for one in instead), "the path of its config.json"])
        raise ValueError(f"{quoted(name)} is {row}, but {wrong}; write {write}")
    return NamedModel(row, size, form, note)
