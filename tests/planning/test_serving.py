"""Weights with fewer bits, and GPUs that hold them together, as changes of a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simoffload.documents import parse_yaml, yaml_text
from simoffload.planning.alternatives import formats, in_gpus, possible
from simoffload.planning.evaluator import Evaluator
from simoffload.results import Change
from simoffload.scenario import resolve
from simoffload.simulation import fit


def together(evaluator: Evaluator) -> Iterator[Change]:
    return possible(evaluator, in_gpus(evaluator))


def scenario(platform: str, model: Any = "llama-2-70b", **strategy: Any) -> Evaluator:
    text = {
        "name": "served",
        "model": model,
        "platform": platform,
        "workload": {"batch_size": 1, "prompt_length": 32, "output_length": 4},
        "strategy": {"kind": "accelerate", **strategy},
    }
    return Evaluator(resolve(parse_yaml(yaml_text(text), name="s.yaml")))


def test_gpus_hold_what_fits_into_them() -> None:
    """138 GB need four A100 of 40 GB, 70 GB in FP8 and 36 GB in 4 bit the two that are used."""
    found = {one.key: one for one in together(scenario("dgx-a100", num_gpus=2))}
    words = {key: one.description for key, one in found.items()}
    assert words == {
        "vllm": "weights divided among 4 GPUs (vLLM)",
        "vllm-fp8": ("weights divided among 2 GPUs (vLLM), stored as fp8 (answers change)"),
        "vllm-int4-g128": ("weights divided among 2 GPUs (vLLM), stored as int4-g128 (answers change)"),
    }
    assert [key for key, one in found.items() if not one.same_work] == list(found)[1:]
    for one in found.values():
        assert fit(scenario("dgx-a100", num_gpus=2).edited(*one.edits)).fits


def test_formats_are_those_of_the_program() -> None:
    """vLLM loads FP8 on GPUs without arithmetic in FP8, too, where it is decoded."""
    for platform in ("dgx-a100", "dgx-h100"):
        keys = [one.key for one in formats(scenario(platform, kind="vllm"))]
        assert keys == ["format-fp8", "format-int4-g128"]


def test_a_quantized_model_keeps_its_format() -> None:
    served = scenario("dgx-a100", {"name": "llama-2-70b", "quantization": "fp8"}, num_gpus=2)
    assert not list(formats(served))
    assert [one.key for one in together(served)] == ["vllm"]


def test_one_gpu_holds_what_fits_into_it() -> None:
    """13.5 GB fit into 24 GB as they are; 26 GB only with 8 or 4 bits."""
    small, large = (scenario("rtx-4090-desktop", f"llama-2-{size}") for size in ("7b", "13b"))
    assert next(together(small)).description == "weights in the HBM of one GPU (vLLM)"
    assert [one.key for one in together(large)] == [
        "vllm-fp8",
        "vllm-int4-g128",
    ]


def test_what_is_already_done_is_no_change() -> None:
    served = scenario("rtx-4090-desktop", "llama-2-7b", kind="vllm")
    assert all("stored as" in one.description for one in together(served))


def test_nf4_does_not_make_experts_in_one_tensor_fit() -> None:
    """Mixtral's experts stay in 16 bits under bitsandbytes, so that 4 bits do not bring it into 80 GB."""

    def four_bits(layout: str) -> bool:
        model = {"name": "mixtral-8x7b", "expert_layout": layout}
        served = scenario("dgx-a100-80g", model, kind="transformers")
        (change,) = formats(served)
        assert change.key == "format-nf4-dq"
        return fit(served.edited(*change.edits)).fits

    assert not four_bits("fused")
    assert four_bits("separate")
