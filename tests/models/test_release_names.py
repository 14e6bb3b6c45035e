"""Names of releases that are not listed."""

from __future__ import annotations

import pytest

from simoffload.errors import InputError
from simoffload.models import is_model, load_model


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
    ],
)
def test_a_release_is_its_model(name: str, listed: str) -> None:
    assert load_model(name) == load_model(listed)
    assert is_model(name.rpartition("/")[2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama-3.1", '"llama-3.1" may be llama-3.1-8b, llama-3.1-70b, llama-3.1-405b; write which'),
        ("Llama-3.1-7B-Instruct", "unknown model"),
        ("-instruct", "unknown model"),
        ("qwen3-235b-a22b-fp8", "unknown model"),
        ("pythia", "may be "),
    ],
)
def test_what_may_be_several_is_refused(name: str, message: str) -> None:
    assert not is_model(name)
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        load_model(name)
