"""Names of releases: a name that is not listed is that of a listed model with other words at its end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from simoffload.documents import folded, named

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
