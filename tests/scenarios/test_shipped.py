"""Every shipped scenario loads, has a description, keeps its source's settings, and runs."""

from __future__ import annotations

import pytest

from simoffload.planning.compare import compare_fit
from simoffload.planning.targets import on_targets
from simoffload.scenario import LoadedScenario, list_scenarios, read_scenario

TRAINING = {
    *(f"xinnor/llama-{what}" for what in ("1b", "2b", "3b", "16b-optimizer", "16b-parameters")),
    *(f"zenflow/{model}" for model in ("qwen2.5-1.5b", "qwen2.5-3b", "llama-2-7b")),
    *(f"training/{model}" for model in ("bloom-7b1", "bloom-176b", "bloom-mod-1", "bloom-mod-2", "gpt-1t")),
    *("zero-offload-2020/gpt2-10b", "zero-offload-2021/gpt2", "zero-infinity/gpt2-50b"),
    "superoffload/qwen3-14b",
    "fsdp/llama-3.1-8b",
    "training/llama-3.1-8b-qlora",
}
OWN_CHECKPOINTS = {"zero-infinity/gpt2-50b", "training/bloom-mod-2"}
"""Their models are taken to call DeepSpeed's checkpoint function, which keeps checkpoints in host memory."""
NAMES = [name for name in list_scenarios() if not name.startswith("checkpoint/")]  # see test_checkpoints.py
DDN_TARGETS = ("gpu", "dram", "raid", "nfs", "ai400x2")


def settings(scenario: LoadedScenario) -> tuple[dict, dict]:
    config = scenario.document.data["strategy"]["ds_config"]
    return config["zero_optimization"], config["aio"]


def test_the_studies_are_all_there() -> None:
    assert set(NAMES) == {
        *(f"ddn/bloom-{size}" for size in ("7b1", "176b", "mod-1", "mod-2")),
        *(f"deepnvme/{model}" for model in ("llama-3-70b", "bloom-176b", "mixtral-8x22b")),
        *(f"zero-inference-2022/{model}" for model in ("opt-30b", "opt-175b", "bloom-176b")),
        *("zero-inference-2023/opt-30b", "zero-inference-2023/opt-30b-kv"),
        "storage/llama-3.1-405b",
        "gpt-fast/llama-2",
        "vllm/llama-3-70b",
        "vllm/llama-3.1-8b-blocks",
        "vllm/glm-5-hot-rows",
        "vllm/llama-3.1-70b-draft",
        *(f"mooncake/{model}" for model in ("qwen3-8b", "qwen3-235b-a22b")),
        "llama-cpp/gpt-oss-120b",
        *(f"micron/opt-30b-{place}" for place in ("nvme", "hbm")),
        *(f"micron/opt-{size}" for size in ("13b", "30b", "66b")),
        *("accelerate/llama-3.1-70b", "accelerate/opt-30b", "flexgen/opt-30b", "flexgen/opt-30b-accelerate"),
        "flexgen/opt-6.7b-cache-on-disk",
        *(f"serving/{model}" for model in ("llama-3.1-70b", "gpt-oss-120b", "qwen3-235b-a22b")),
        *(
            f"serving/llama-3.1-{what}"
            for what in ("8b-chat", "8b-conversations", "8b-mooncake", "70b-offload")
        ),
        *TRAINING,
    }


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is_and_gives_no_cause_for_warnings(name: str) -> None:
    scenario = read_scenario(name)
    assert len(scenario.scenario.description) > 100
    warnings = scenario.plan().warnings
    expected = ["cpu_checkpointing"] * (name in OWN_CHECKPOINTS)
    expected += ["ratio 0.9 of 32"] * (name == "superoffload/qwen3-14b")  # as in its source
    expected += ["each of 4 key-value heads is kept by 2 GPUs"] * (name == "mooncake/qwen3-235b-a22b")
    assert len(warnings) == len(expected), warnings
    assert all(text in warning for text, warning in zip(expected, warnings, strict=True))


@pytest.mark.parametrize(
    ("name", "fits"),
    [("bloom-7b1", "11111"), ("bloom-176b", "01111"), ("bloom-mod-1", "00111"), ("bloom-mod-2", "00011")],
)
def test_what_fits_where_is_the_white_papers_answer(name: str, fits: str) -> None:
    comparison = compare_fit(on_targets(read_scenario(f"ddn/{name}"), DDN_TARGETS))
    assert [result.fits for result in comparison.results.values()] == [one == "1" for one in fits]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("ddn/")])
def test_ddn_has_the_settings_of_the_script(name: str) -> None:
    scenario = read_scenario(name)
    zero, aio = settings(scenario)
    assert scenario.scenario.strategy.ranks == 8
    assert zero["stage3_prefetch_bucket_size"] == int(0.9 * scenario.model.hidden_size**2)
    assert zero["stage3_param_persistence_threshold"] == 0
    assert zero["offload_param"] == {"pin_memory": True, "buffer_count": 5, "buffer_size": 4e9}
    assert aio["block_size"] == 1 << 20


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("deepnvme/")])
def test_deepnvme_has_the_settings_of_the_script(name: str) -> None:
    scenario = read_scenario(name)
    zero, aio = settings(scenario)
    assert zero["stage3_prefetch_bucket_size"] == zero["stage3_max_live_parameters"]
    assert zero["stage3_max_live_parameters"] == 2 * scenario.model.hidden_size**2
    assert zero["stage3_param_persistence_threshold"] == scenario.model.hidden_size
    assert (aio["block_size"], aio["queue_depth"], aio["thread_count"]) == (16 << 20, 64, 8)
