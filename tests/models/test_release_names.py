"""Names of releases that are not listed."""

from __future__ import annotations

import re

import pytest

from simoffload.errors import InputError
from simoffload.models import is_model, list_models, load_model
from simoffload.models.sizes import find_size


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("Qwen3-235B", "qwen3-235b-a22b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b"),
        ("DeepSeek-R1-0528", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("DeepSeek-V2-Chat", "deepseek-v2"),
        ("Kimi-K2-Instruct-0905", "kimi-k2"),
        ("Qwen3-8B-Base", "qwen3-8b"),
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("GLM-4.5", "glm-4.5"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("mistralai/Mistral-Small-24B-Instruct-2501", "mistral-small"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("bigscience/bloom", "bloom-176b"),
        ("Llama 3.3 70B", "llama-3.3-70b"),
        ("llama_3.3_70b", "llama-3.3-70b"),
    ],
)
def test_a_release_is_its_model(name: str, listed: str) -> None:
    assert load_model(name) == load_model(listed)
    assert is_model(name)
    assert is_model(name.rpartition("/")[2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama-3.1", '"llama-3.1" may be llama-3.1-8b, llama-3.1-70b, llama-3.1-405b; write which'),
        ("Llama-3.1-7B-Instruct", "unknown model"),
        ("-instruct", "unknown model"),
        ("qwen3-235b-a22b-fp8", "unknown model"),
        ("pythia", "may be "),
        ("mistralai/Mistral-Small-Instruct-2409", "unknown model"),  # 22 billion parameters, not 24
        ("mistralai/Mistral-7B-Instruct-v0.2", "unknown model"),
        ("moonshotai/Kimi-K2-Thinking", "its experts are stored in 4 bits"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "unknown model"),
        ("google/gemma-2b", "unknown model"),
        (
            "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8",
            "(fp8); write {name: qwen3-30b-a3b, quantization: fp8}",
        ),
        ("Qwen/Qwen3-32B-AWQ", "quantization: int4-g128}"),
        ("unsloth/Qwen3-8B-GGUF", "quantization: q4_k_m}"),
        ("Qwen3-8B-Q4_K_S", "quantization: q4_k_s}"),
        ("unsloth/gpt-oss-20b-BF16", "quantization: none}"),
    ],
)
def test_what_may_be_several_is_refused(name: str, message: str) -> None:
    assert not is_model(name)
    with pytest.raises(InputError, match=re.escape(message)):
        load_model(name)


def test_a_name_of_many_words_costs_no_time() -> None:
    assert not is_model("qwen3-8b" + "-instruct-fp8" * 10**5)


def test_every_id_of_the_hub_in_the_data_is_its_model() -> None:
    for name in list_models():
        for alias in find_size(name)[1].names:
            assert find_size(f"some-organisation/{alias}")[0] == name
