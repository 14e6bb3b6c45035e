"""What is known of the quality of answers that fewer bits change: a few words each, with their source.

simoffload predicts times, not answers. The words repeat what each source reports for its own models and
tasks; none is a figure of ours. Sources: Kurtic et al., arXiv 2411.02355 (fp8 and 4-bit integers of Llama
3.1); Hu et al., LoRA, arXiv 2106.09685; Dettmers et al., LLM.int8(), arXiv 2208.07339, QLoRA, arXiv
2305.14314, and 8-bit optimizers, arXiv 2110.02861; Sheng et al., FlexGen, arXiv 2303.06865; SGLang's
documentation of its quantized cache; Hugging Face's blog on quantization of the cache (May 2024).
"""

from __future__ import annotations

ADAPTERS = "on par with training all weights in its authors' tests (arXiv 2106.09685)"
"""Published quality of LoRA adapters."""
STATES_8BIT = "8-bit states matched those of 32 bit in published runs (arXiv 2110.02861)"
"""Published quality of optimizers with 8-bit states."""
FROZEN_NF4 = "matched 16-bit LoRA in published tests (arXiv 2305.14314)"
"""Published quality of frozen weights in NF4."""
HALVED = "each value is rounded to 8 significant bits"
"""Word on bfloat16 in place of float32."""
FLEXGEN_4BIT = "a negligible loss in its authors' tests (arXiv 2303.06865)"
"""Word on FlexGen's 4 bits."""
_TEST_IT = "no published test is known to simoffload: compare answers on your own task"

_WEIGHTS = {
    "fp8": "effectively lossless in published tests (arXiv 2411.02355)",
    "int8": "no loss in its authors' tests (arXiv 2208.07339)",
    "int8-g": "more accurate than 4 bits, which rival 8 in published tests (arXiv 2411.02355)",
    "int4-g": "rivals 8 bits in published tests if well calibrated (arXiv 2411.02355)",
    "nf4": FROZEN_NF4,
}
"""Words on weights by the beginnings of names of formats."""
_CACHES = {
    "fp8": "a minimal loss according to SGLang's documentation; calibrated scales are better",
    "int4": "almost as good as 16 bits in Hugging Face's tests",
    "4 bits": FLEXGEN_4BIT,
    "int2": "worse than 16 bits in Hugging Face's tests",
}


def quality_of_weights(name: str) -> str:
    """Return what is known of weights stored in a format."""
    known = (start for start in _WEIGHTS if name.startswith(start))
    return _WEIGHTS.get(max(known, key=len, default=""), _TEST_IT)


def quality_of_cache(name: str | None) -> str:
    """Return what is known of a key-value cache stored in a format; None is the model's data type."""
    return f"cache: {_CACHES.get(name, _TEST_IT)}" if name else "cache: as the model computes it"
