"""Strategies with quantized weights: they move and hold stored bytes, and pay for dequantization."""

from __future__ import annotations

import pytest

import simoffload as so
from simoffload.errors import InputError
from simoffload.models import load_model
from simoffload.strategies.base import memory_stages
from simoffload.strategies.divided import divide
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan

_STREAMED = "zero-inference-2022/opt-30b"
_IN_HBM = "micron/opt-30b-hbm"


def scenario(name: str, quantization: str, *more: str) -> so.LoadedScenario:
    """Load a shipped scenario of OPT-30B with quantized weights."""
    return so.load_scenario(name, overrides=[f"model={{name: opt-30b, quantization: {quantization}}}", *more])


@pytest.mark.parametrize("quantization", ["none", "int4-g128", "nf4-dq", "gpt-fast-int8", "q4_k_m"])
def test_zero_inference_copies_what_is_stored(quantization: str) -> None:
    loaded = scenario(
        _STREAMED, quantization, "strategy.ds_config.zero_optimization.stage3_max_reuse_distance=0"
    )
    result, plan = so.simulate(loaded), loaded.plan()
    assert isinstance(plan, ZeroInferencePlan)
    assert sum(2 * one.numel for one in plan.tensors) == loaded.model.weight_bytes
    copied = {share.cause_text: share.size for share in result.decode[0].shares}["host to GPU"]
    (head,) = loaded.model.modules_after[-1].parameters  # the table, once more
    once = sum(2 * one.numel for one in plan.tensors if not one.persistent)
    assert copied == once + head.stored_bytes(2)


def test_memory_is_that_of_stored_weights() -> None:
    whole = "strategy={kind: transformers}"
    loaded = scenario(_IN_HBM, "int4-g128", whole)
    (stage,) = memory_stages(loaded.plan())
    sizes = {one.name: one.size for one in stage.terms}
    assert sizes["weights"] == loaded.model.weight_bytes
    assert "largest weight written in full" not in sizes
    (stage,) = memory_stages(scenario(_IN_HBM, "nf4", whole).plan())
    sizes = {one.name: one.size for one in stage.terms}
    assert sizes["largest weight written in full"] == 2 * 7168 * 4 * 7168


def test_four_bits_are_faster_but_not_by_their_bytes() -> None:
    plain, four = (so.simulate(scenario(_IN_HBM, one)) for one in ("none", "int4-g128"))
    assert plain.tpot_s is not None
    assert four.tpot_s is not None
    assert 2 < plain.tpot_s / four.tpot_s < 59.9 / 16.1


@pytest.mark.parametrize(("platform", "decoded"), [("dgx-a100", True), ("dgx-h100", False)])
def test_fp8_is_decoded_where_tensor_cores_do_not_take_it(platform: str, *, decoded: bool) -> None:
    """On an A100 a step of FP8 takes the time of 8-bit integers, whose scales are 4 B a row."""
    served = ["strategy={kind: vllm}", f"platform={platform}"]
    fp8, int8 = (so.simulate(scenario(_IN_HBM, one, *served)).tpot_s or 0.0 for one in ("fp8", "int8"))
    if decoded:
        assert fp8 == pytest.approx(int8, rel=0.002)
    else:
        assert 0 < fp8 < 0.95 * int8


def test_compiled_code_multiplies_in_fp8() -> None:
    """A prefill that arithmetic limits takes about half the time, with code that quantizes activations."""

    def prefill(quantization: str, platform: str, *, compiled: bool) -> float:
        kind = f"strategy={{kind: {'vllm' if compiled else 'transformers'}}}"
        work = ["workload.batch_size=4", "workload.prompt_length=1024", f"platform={platform}"]
        return so.simulate(scenario(_IN_HBM, quantization, kind, *work)).ttft_s or 0.0

    for platform, compiled, least, most in (
        ("dgx-h100", True, 0.45, 0.65),
        ("dgx-h100", False, 0.95, 1.0),
        ("dgx-a100-80g", True, 0.99, 1.3),
    ):
        fp8, plain = (prefill(one, platform, compiled=compiled) for one in ("fp8", "none"))
        assert least < fp8 / plain <= most


def test_training_with_quantized_weights_is_refused() -> None:
    loaded = so.load_scenario("training/bloom-7b1", overrides=["model={name: bloom-7b1, quantization: int8}"])
    with pytest.raises(InputError, match="weights in int8 are not trained"):
        so.simulate(loaded)


def _served(model: str, kind: str = "vllm") -> str:
    """Return the exported command that serves a model on two GPUs."""
    kind = f"strategy={{kind: {kind}, tensor_parallel_size: 2}}"
    loaded = so.load_scenario(_IN_HBM, overrides=[f"model={model}", kind, "platform=dgx-h100"])
    (command,) = loaded.exports().values()
    return str(command)


def test_exported_commands_load_the_weights_in_their_format() -> None:
    released = _served("gpt-oss-120b")
    assert "--dtype bfloat16" in released  # vLLM refuses float16 for MXFP4
    assert "--quantization" not in released
    at_loading = _served("{name: llama-3.1-8b, quantization: fp8}")
    assert at_loading.endswith(" \\\n  --quantization fp8\n")
    assert "stored as" not in at_loading
    needed = "with weights stored as int4-g128"
    for kind in ("vllm", "transformers"):
        command = _served("{name: llama-3.1-8b, quantization: int4-g128}", kind)
        assert needed in command
        assert "--quantization" not in command
        assert "stored as" not in _served("llama-3.1-8b", kind)


def test_blocks_of_weights_are_not_cut() -> None:
    """Experts of Qwen3-235B are 1536 wide: 192 on each of 8 GPUs, which vLLM refuses (issue 17569)."""
    model = load_model({"name": "qwen3-235b-a22b", "quantization": "fp8-block128"})
    assert divide(model, tensor=4, pipeline=2, fused=True).stages
    expected = r"down_proj, which is stored as fp8-block128: 192 columns are not a multiple of 128; lower it"
    with pytest.raises(InputError, match=expected):
        divide(model, tensor=8, pipeline=1, fused=True)
    assert divide(load_model("gpt-oss-120b"), tensor=8, pipeline=1, fused=True).stages  # padded
