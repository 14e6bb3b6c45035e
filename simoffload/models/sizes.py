"""Models that have a name: the released sizes of ``sizes.yaml``, and what may be written for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field, TypeAdapter

from simoffload.documents import Document, Frozen, candidates, folded, listing, named, parse_yaml, quoted
from simoffload.errors import shortened

if TYPE_CHECKING:
    from simoffload.models.quantization import Quantization

# -- names of releases -----------------------------------------------------------------------------

_SEPARATORS = re.compile(r"[-_\s]+")
_RELEASE = re.compile(r"-(instruct|chat|thinking|base|hf|it|\d{4})$")
"""Last word of a name that does not change the shape: how the model was tuned, and the date of a release."""
_DATE = re.compile(r"-\d{4}$")
_FORM = re.compile(
    r"[-.]((?:nv|mx)?fp[468]|bf16|fp?16|int[48]|[348]-?bits?|w\d+a\d+|i?q[1-8](?:-[0-9klmsx]+)*|awq|gptq"
    r"|gguf|mlx|bnb|exl[23]|hqq|qat|quantized|unquantized|dynamic|block|g(?:roup)?\d+)$"
)
"""Last word of a name that says in which form the weights are stored."""
_USUAL_FORMS = {
    **dict.fromkeys(("awq", "gptq", "4bit", "4-bit", "w4a16"), "int4-g128"),
    **dict.fromkeys(("bf16", "fp16", "f16", "unquantized"), "none"),
    "bnb": "nf4-dq",
    "w8a8": "int8",
    "w8a16": "int8",
    "8bit": "int8",
    "8-bit": "int8",
    "gguf": "q4_k_m",
    "fp4": "nvfp4",
}
"""The form (``quantization``) that releases with such a word usually have."""


class Meaning(NamedTuple):
    """What a name may mean."""

    listed: tuple[str, ...]
    """The names of rows; () for none."""
    form: str = ""
    """Words of the name for another form of the weights: "fp8"; "" where it has none."""


def meaning(wanted: str, rows: Mapping[str, str]) -> Meaning:
    """Return which rows a name means: the row of that name, of the name without words of a release, or all
    rows that the name begins.

    ``rows`` maps names and aliases in lower case to their rows. A date of a release is not dropped for a row
    whose own names have another date, because those are other models (Mistral-Small-Instruct-2409 and -2501).
    """
    text, dated = _SEPARATORS.sub("-", wanted.strip().lower()), False
    forms: list[str] = []
    while True:
        found = tuple(dict.fromkeys(rows[name] for name in named(text, rows)))
        if found and not (dated and _is_dated(found[0], rows)):
            return Meaning(found, " ".join(reversed(forms)))
        if found:
            return Meaning(())
        if match := _FORM.search(text):
            forms.append(match[1])
        else:
            match = _RELEASE.search(text)
            if match is None:
                break
            dated = dated or match[1].isdigit()
        text = text[: match.start()]
    begun = folded(text)
    if dated or not begun:
        return Meaning(())
    longer = (name for name in rows if name.startswith(f"{text}-") or folded(name).startswith(f"{begun}-"))
    return Meaning(tuple(dict.fromkeys(rows[name] for name in longer)), " ".join(reversed(forms)))


def usual_form(form: str, known: Iterable[str]) -> str:
    """Return the ``quantization`` that the words of a :class:`Meaning` stand for, as far as they tell."""
    spelled = {name.replace("_", "-"): name for name in known}
    parts = form.split()
    found = [spelled[word] for word in parts if word in spelled]
    return next(iter([*found, *(_USUAL_FORMS[word] for word in parts if word in _USUAL_FORMS)]), "…")


def _is_dated(row: str, rows: Mapping[str, str]) -> bool:
    return any(_DATE.search(name) for name, known in rows.items() if known == row)


# -- sizes -----------------------------------------------------------------------------------------

_LONGEST = 200  # characters of a name; no model has as many


class Size(Frozen):
    """A Size is one row of ``sizes.yaml``: a released model."""

    family: str
    source: str
    """Where the configuration is published."""
    aliases: tuple[str, ...] = ()
    """Other names of the same shape, without their organisation."""
    distinct: dict[str, str] = Field(default_factory=dict)
    """Releases whose names look like one of this shape but are not, with the reason."""
    config: dict[str, Any]
    """Configuration in Hugging Face's keys; checked by the family."""
    notes: tuple[str, ...] = ()
    """Sentences about what of the released model is not counted."""
    quantization_config: dict[str, Any] | None = None
    """Section of the released config.json; None where the weights have 16 bits."""

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

        return read_quantization(Document("sizes.yaml", {KEY: self.quantization_config}))


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
    """Return whether a text is the name of one model, as :func:`find_size` reads it."""
    try:
        find_size(name)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1024)
def canonical_model(name: str) -> str:
    """Return the name in the list of models that a text means; the text itself where it means none."""
    try:
        return find_size(name)[0]
    except ValueError:
        return name


def resembled_model(name: str) -> str:
    """Return why a name that says of itself what it is means no model: several begin so, or the weights have
    another form; "" for any other text."""
    wanted = _wanted(name)
    if _distinct(wanted) or meaning(wanted, _canonical()).listed:
        try:
            find_size(name)
        except ValueError as error:
            return str(error)
    return ""


def _wanted(name: str) -> str:
    return name.strip().rsplit("/", maxsplit=1)[-1][:_LONGEST].lower()


def _distinct(wanted: str) -> str:
    """Return why a name means none of the rows that it resembles; "" where nothing is known against it."""
    reasons = {name: why for size in _sizes().values() for name, why in size.distinct.items()}
    return next((reasons[name] for name in named(wanted, reasons)), "")


def _not_listed(name: str, wanted: str, meant: Meaning) -> ValueError:
    """Return the error for a name that means no row, or several."""
    sizes = _sizes()
    if len(meant.listed) == 1:
        from simoffload.models.quantization import QUANTIZATIONS

        write = f"{{name: {meant.listed[0]}, quantization: {usual_form(meant.form, QUANTIZATIONS)}}}"
        text = f"it is {meant.listed[0]} with weights in another form ({meant.form}); write {write}"
        return ValueError(f"unknown model {quoted(name)}: {text} or the path of its config.json")
    if meant.listed:
        return ValueError(f"{quoted(name)} may be {listing(list(meant.listed))}; write which")
    names = [alias for known, size in sizes.items() for alias in (known, *size.names)]
    hint = candidates(wanted, names) or f"; known: {listing(list(sizes))} (simoffload models list)"
    if wanted.endswith(".json"):
        hint = f"; for a file write {{config: {shortened(name)}}}"
    return ValueError(f"unknown model {quoted(name)}{_distinct(wanted) and f': {_distinct(wanted)}'}{hint}")


def find_size(name: str) -> tuple[str, Size]:
    """Look a size up by name, alias or id on the Hugging Face hub, ignoring case, separators, an organisation
    before the last "/" and words of a release; the beginning of a name is enough where only one begins so.

    Returns the canonical name and the size. Raises ValueError, with the nearest names, for an unknown one,
    one that may be several, and one whose weights have another form than the listed ones.
    """
    wanted = _wanted(name)
    meant = Meaning(()) if _distinct(wanted) else meaning(wanted, _canonical())
    if len(meant.listed) == 1 and not meant.form:
        return meant.listed[0], _sizes()[meant.listed[0]]
    raise _not_listed(name, wanted, meant)
