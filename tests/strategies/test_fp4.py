"""Weights, products and caches in formats of Blackwell: NVFP4 and MXFP8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.errors import InputError
from simoffload.models import Module, Sequences
from simoffload.strategies.base import memory_stages
from simoffload.strategies.passes.timing import FusedTiming

_WORK = ["workload.batch_size=1", "workload.prompt_length=2048", "workload.output_length=3"]


def scenario(quantization: str, platform: str, *more: str) -> so.LoadedScenario:
    """Load a scenario of Llama-3.1-8B under vLLM."""
    model = f"model={{name: llama-3.1-8b, dtype: bfloat16, quantization: {quantization}}}"
    given = [model, "strategy={kind: vllm}", f"platform={platform}", *_WORK, *more]
    return so.load_scenario("micron/opt-30b-hbm", overrides=given)


def timing(quantization: str, platform: str, tokens: int) -> tuple[FusedTiming, Module]:
    """Return the times of a prefill, and the last product of a layer."""
    plan: Any = scenario(quantization, platform).plan()
    found = plan.stage_timings[0].timing((Sequences(1, tokens, tokens),))
    assert isinstance(found, FusedTiming)
    layer, _ = found._model.kinds[0]
    (module,) = (one for one in layer if one.name == "mlp.down_proj")
    return found, module


def test_a_b200_multiplies_nvfp4_as_it_is() -> None:
    """At 9,000 TFLOP/s, 0.74 of the efficiency of 16 bits, and 0.64 of the rate of its reads."""
    found, module = timing("nvfp4", "hgx-b200", 4096)
    gpu = found.machine.accelerator
    weights = 4096 * 14336
    flops, vectors = 2 * 4096 * weights, 4096 * (4096 + 14336) * 2
    peak = 9000e12 * 0.74 * gpu.kernels.products.at(flops)
    read = (vectors + (weights * 9 / 16 + 8) / 0.64) / (7.7e12 * gpu.kernels.read_efficiency.value)
    seconds = ((flops / peak) ** 3 + read**3) ** (1 / 3) + gpu.kernels.kernel_latency.value
    assert found.compute(module) == pytest.approx(seconds * 1e12, rel=1e-6)


def test_the_table_of_an_rtx_pro_6000_is_used() -> None:
    found, module = timing("nvfp4", "rtx-pro-6000-2gpu", 512)
    gpu = found.machine.accelerator
    one = gpu.product_s(rows=512, outputs=4096, inputs=14336, dtype="float4", size=2)
    eight = gpu.product_s(rows=512, outputs=4096, inputs=14336, dtype="float8", size=2)
    assert one is not None
    assert eight is not None
    assert found.compute(module) == pytest.approx(one * 1e12, rel=1e-6)
    assert 0.4 < one / eight < 0.8  # half the bytes and twice the peak, of which it reaches less


@pytest.mark.parametrize(
    ("platform", "four", "eight"), [("dgx-h100", "decoded", "decoded"), ("hgx-b200", "native", "native")]
)
def test_formats_with_scales_of_groups_are_decoded_elsewhere(platform: str, four: str, eight: str) -> None:
    """As 4-bit weights for inputs in 16 bits, and as 8-bit integers, both by Marlin's kernels."""

    def prefill(quantization: str) -> int:
        found, module = timing(quantization, platform, 4096)
        return found.compute(module)

    as_four = prefill("nvfp4") / prefill("nvfp4-a16")
    assert as_four == pytest.approx(1, rel=1e-3) if four == "decoded" else as_four < 0.4
    as_eight = prefill("mxfp8") / prefill("fp8")
    assert as_eight > 1.4 if eight == "decoded" else as_eight == pytest.approx(1, rel=0.02)


def test_no_run_is_like_products_in_fp4() -> None:
    (text,) = (one for one in scenario("nvfp4", "hgx-b200").plan().basis.uncompared if "as nvfp4" in one)
    assert text == "served weights as nvfp4 on NVIDIA B200 SXM 180 GB"


# -- caches ----------------------------------------------------------------------------------------


def cache_bytes(loaded: so.LoadedScenario) -> float:
    (stage,) = memory_stages(loaded.plan())
    return float(next(one.size for one in stage.terms if one.name == "key-value cache"))


def test_a_cache_in_nvfp4_has_half_a_byte_and_a_scale() -> None:
    """16 elements have 9 B: 72 B for a head of 128, of 16 bits 256 B."""
    plain, four = (
        cache_bytes(scenario("nvfp4", "hgx-b200", f"strategy.kv_cache={{format: {one}}}"))
        for one in ("bf16", "nvfp4")
    )
    assert four / plain == 72 / 256


@pytest.mark.parametrize(
    ("platform", "has"), [("dgx-h100", "h100-sxm is 9.0"), ("rtx-5090-workstation", "rtx-5090 is 12.0")]
)
def test_only_datacenter_blackwell_attends_to_it(platform: str, has: str) -> None:
    loaded = scenario("nvfp4", platform, "strategy.kv_cache={format: nvfp4}")
    text = rf"kv_cache.format: a cache in nvfp4 in vLLM needs compute capability 10 .*{has}; set it to fp8"
    with pytest.raises(InputError, match=text):
        loaded.plan()


_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("stated", "kept", "platform"),
    [("FP8", "fp8", "dgx-h100"), ("NVFP4", "nvfp4", "hgx-b200"), (None, None, "dgx-h100")],
)
def test_vllm_keeps_keys_and_values_as_the_checkpoint_says(
    stated: str | None, kept: str | None, platform: str, tmp_path: Path
) -> None:
    """``--kv-cache-dtype auto``, unless the scenario states a format; other programs do not."""
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": stated}
    (tmp_path / "config.json").write_text(json.dumps({**_CONFIG, "quantization_config": section}))

    def plan(strategy: str) -> Any:
        work = "{kind: inference, batch_size: 1, prompt_length: 64, output_length: 3}"
        (tmp_path / "s.yaml").write_text(
            f"name: t\nmodel: {{config: config.json}}\nplatform: {platform}\n"
            f"workload: {work}\nstrategy: {{kind: {strategy}}}\n"
        )
        return so.load_scenario(tmp_path / "s.yaml").plan()

    assert plan("vllm").cache.format == kept
    assert plan("vllm, kv_cache: {format: bf16}").cache.format is None
    assert plan("transformers").cache.format is None
    notes = [one for one in plan("vllm").model.notes if "scales for keys and values" in one]
    assert len(notes) == (kept is not None)
