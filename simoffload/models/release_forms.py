"""Words in names of releases that say in which form the weights are stored: AWQ, FP8-dynamic, UD-Q4_K_XL."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from simoffload.documents import named, nearest, quoted
from simoffload.models.gguf import MIXTURES
from simoffload.models.quantization import QUANTIZATIONS, Quantization

UNQUANTIZED = "none"
"""Form of weights in 16 bits."""
USUAL_GGUF = "q4_k_m"
"""Mixture that llama.cpp and Ollama take where a name says none (``common_get_hf_file``)."""
_SIXTEEN = {"bf16", "fp16", "f16", "unquantized", UNQUANTIZED}
_FOUR_BIT_INTEGERS = {"awq", "gptq", "int4", "w4a16", "autoround"}
_EIGHT_BIT_INTEGERS = {"int8", "8bit", "8-bit", "w8a16"}
_UNKNOWN: Mapping[str, str] = {
    **dict.fromkeys(("mlx",), "a format of Apple's MLX, which no program here runs"),
    **dict.fromkeys(("exl2", "exl3"), "a format of ExLlama, which is not modelled"),
    **dict.fromkeys(("hqq", "onnx", "ggml"), "not modelled"),
    **dict.fromkeys(("w8a8", "w4a8"), "arithmetic with integers of 8 bits, which is not modelled"),
    **dict.fromkeys(("w4afp8", "fp6"), "not modelled"),
}
"""What is said of forms that are known and not modelled."""
_NEAREST: Mapping[str, str] = {"w8a8": "int8-g128", "w4a8": "int4-g128", "w4afp8": "int4-g128", "fp6": "q6_k"}
"""The modelled form with weights about as large; otherwise the usual one of GGUF."""
_SILENT = {"kv", "i1", "imatrix", "unsloth", "dynamic", "block"}
"""Words that say nothing of the size of weights by themselves."""
_GROUP = re.compile(r"g(?:roup)?(\d+)")
_CHOICES = (
    ("int4-g128 (GPTQ, AWQ)", "nf4-dq (bitsandbytes)", "q4_k_m (GGUF)"),
    ("fp8", "int8-g128 (GPTQ)", "int8 (bitsandbytes)", "q8_0 (GGUF)"),
)
"""Forms of 4 and of 8 bits."""
_WIDTH = re.compile(r"w\d+a\d+|\d+-?bits?|\d(?:\.\d+)?bpw|quantized")


class Form(NamedTuple):
    """A Form is what words of a name say of the weights."""

    name: str | None
    """Quantization, or "none" for 16 bits; None: that of the release."""
    note: str = ""
    """Sentence for results about what was taken."""
    wrong: str = ""
    """Why the form is not known; "" if it is."""
    instead: tuple[str, ...] = ()
    """Forms that can be given instead, with what they are."""


def form_of(words: Sequence[str], released: Quantization | None) -> Form:
    """Return the form that words of a name stand for, in the order of the name, of a model that was
    ``released`` in a form."""
    said = set(words)
    if len(words) > 1 and (whole := _listed("-".join(words))):
        return Form(whole)
    for word in words:
        if why := _UNKNOWN.get(word):
            near = _NEAREST.get(word, USUAL_GGUF)
            return Form(None, wrong=f"its weights are in {word}, {why}", instead=(near,))
    listed = [found for word in words if (found := _listed(word))]
    gguf = "gguf" in said or any(one in MIXTURES for one in listed)
    if gguf and released is not None and released.name == "mxfp4":
        return _as_released(listed, said)
    if "unquantized" in said or (not listed and said & _SIXTEEN):
        return Form(UNQUANTIZED)
    if name := _named(said, listed):
        same = released is not None and released.format is not None and released.format.method == name
        return Form(None if same or (released and released.name == name) else name)
    return _usual(words, said)


def _listed(word: str) -> str:
    """Return the quantization that a word is the name of; "" for none."""
    return next(iter(named(word, QUANTIZATIONS)), "")


def _as_released(listed: Sequence[str], said: set[str]) -> Form:
    """Return the form of a GGUF file of a release in MXFP4, whose experts stay so in every published one."""
    other = [one for one in listed if one not in ("mxfp4", "mxfp4_moe")] + sorted(said & _SIXTEEN)
    if not other:
        return Form(None)
    return Form(
        None,
        f"experts are in MXFP4 as released, as they are in GGUF files called {other[0].upper()}; the other "
        "tensors, which such files have in that type, are taken as released, too",
    )


def _named(said: set[str], listed: Sequence[str]) -> str:
    """Return the quantization that the words name, or that they have together; "" if they name none."""
    group = next((found[1] for word in said if (found := _GROUP.fullmatch(word))), "128")
    integers = f"int4-g{group}"
    if "fp8" in said:
        return "fp8-channel" if "dynamic" in said else "fp8-block128" if "block" in said else "fp8"
    if said & {"bnb"}:
        return "int8" if said & _EIGHT_BIT_INTEGERS else "nf4-dq"
    if said & {"gptq", "w8a16"} and said & _EIGHT_BIT_INTEGERS:
        return "int8-g128"
    if said & _FOUR_BIT_INTEGERS and "qat" not in said:
        return integers if integers in QUANTIZATIONS else ""
    return next(iter(listed), "nvfp4" if "fp4" in said else "")


def _usual(words: Sequence[str], said: set[str]) -> Form:
    """Return the form of words that do not name one, as far as they say enough."""
    if "qat" in said:  # the releases of Gemma
        return Form("q4_0")
    if "gguf" in said:
        mixture = next((word for word in words if re.match(r"(?:ud-)?(?:i?q|tq)[1-8]", word)), "")
        if not mixture:
            return Form(USUAL_GGUF)
        words = (mixture,)
    if vague := next((word for word in words if _WIDTH.fullmatch(word)), ""):
        return Form(None, wrong=f"{quoted(vague)} does not say in which form", instead=_CHOICES["8" in vague])
    if said <= _SILENT:
        return Form(None)
    word = next(word for word in words if word not in _SILENT)
    near = tuple(nearest(word.replace("-", "_"), QUANTIZATIONS)) or ("fp8", "int4-g128", "q4_k_m")
    return Form(None, wrong=f"no form of weights is called {quoted(word)}", instead=near)
