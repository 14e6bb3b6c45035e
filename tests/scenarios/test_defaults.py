"""A model's name alone becomes a scenario."""

from __future__ import annotations

import pytest

from simoffload import fit, list_models, question
from simoffload.errors import InputError
from simoffload.scenario import default_scenario, read_scenario
from simoffload.strategies.programs.zero_inference import ZeroInference
from simoffload.workload import Inference


def buffer_size(*arguments: str, overrides: tuple[str, ...] = ()) -> int | str:
    strategy = question(*arguments, program="deepspeed", on="dram", overrides=overrides).scenario.strategy
    assert isinstance(strategy, ZeroInference)
    section = strategy.ds_config.zero_optimization.offload_param
    return section.buffer_size if section else 0


def test_it_uses_all_gpus_and_host_memory() -> None:
    scenario = question("llama-3.1-70b", "dgx-h100", program="deepspeed", on="dram")
    assert scenario.name == "llama-3.1-70b"
    usual = Inference(batch_size=1, prompt_length=2048, output_length=512, context=8192)
    assert scenario.scenario.workload == usual
    strategy = scenario.scenario.strategy
    assert isinstance(strategy, ZeroInference)
    assert (strategy.ranks, strategy.weights) == (8, "dram")


@pytest.mark.parametrize(
    ("model", "stated", "lengths"),
    [
        ("llama-2-7b", {}, (2048, 512, 4096)),
        ("opt-13b", {}, (1536, 512, 2048)),  # of 2,048 learned positions
        ("opt-13b", {"prompt_length": 2000}, (2000, 48, 2048)),
        ("opt-13b", {"output_length": 1000}, (1048, 1000, 2048)),
        ("opt-13b", {"context": 4096}, (1536, 512, 4096)),
        ("qwen3-8b", {"prompt_length": 16_000}, (16_000, 512, 8192)),
    ],
)
def test_lengths_are_within_the_positions_of_the_model(
    model: str, stated: dict[str, int], lengths: tuple[int, int, int]
) -> None:
    overrides = tuple(f"workload.{key}={value}" for key, value in stated.items())
    work = default_scenario(model, "dgx-a100", overrides=overrides).scenario.workload
    assert isinstance(work, Inference)
    assert (work.prompt_length, work.output_length, work.context) == lengths


def test_buffers_hold_the_largest_parameter() -> None:
    # the embedding, 250,880 x 14,336 elements, of which each of 8 ranks has a slice
    assert buffer_size("bloom-176b", "dgx-a100") == 250_880 * 14_336 // 8
    assert buffer_size("bloom-176b", "dgx-a100", overrides=("strategy.ranks=1",)) == 250_880 * 14_336


def test_deepspeeds_buffers_stay_where_they_are_large_enough() -> None:
    assert buffer_size("llama-3.1-8b", "dgx-a100") == 0  # 128,256 x 4,096 / 8 = 66 million, and 100 are usual


def test_what_is_said_is_kept() -> None:
    reported = "strategy.ds_config={zero_optimization: {offload_param: {buffer_size: 5e8, buffer_count: 9}}}"
    scenario = question("bloom-176b", "dgx-a100", overrides=("strategy.kind=deepspeed", reported))
    strategy = scenario.scenario.strategy
    assert isinstance(strategy, ZeroInference)
    section = strategy.ds_config.zero_optimization.offload_param
    assert section is not None
    assert section.buffer_size == 500_000_000


def test_overrides_decide_before_anything_follows_from_them() -> None:
    stated = ("platform=dgx-a100", "nodes=2", "workload.batch_size=4")
    scenario = question("llama-3.1-8b", program="deepspeed", overrides=stated)
    assert scenario.scenario.strategy.ranks == 16
    assert scenario.scenario.workload.model_dump()["batch_size"] == 4


_MANY_BUFFERS = 16
_BUFFERS = "strategy.ds_config.zero_optimization.offload_param.buffer_count"


@pytest.mark.parametrize("platform", ["dgx-a100", "h100-2nvme"])
def test_deepspeed_accepts_every_model_on_drives(platform: str) -> None:
    for model in list_models():
        kind = "strategy={kind: deepspeed}"
        scenario = default_scenario(model, platform, overrides=(kind,))
        try:
            scenario = scenario.on("raid")
            _ = scenario.plan()
        except InputError as error:
            # Many small tensors are prefetched together: five buffers are too few for one process.
            if "Not enough buffers" in str(error):
                more = (kind, f"{_BUFFERS}={_MANY_BUFFERS}")
                scenario = default_scenario(model, platform, overrides=more).on("raid")
        if platform == "dgx-a100" and "fp8-block128" in (scenario.model.quantization or ""):
            # transformers has kernels for it on Ada and Hopper only
            with pytest.raises(InputError, match=r"needs compute capability 8\.9"):
                fit(scenario)
            continue
        assert fit(scenario).target == "raid"


def test_deepspeed_says_which_buffers_are_too_few() -> None:
    stated = ("strategy={kind: deepspeed}",)
    scenario = default_scenario("qwen3-next-80b-a3b", "h100-2nvme", overrides=stated).on("raid")
    with pytest.raises(InputError, match=r"raise offload_param\.buffer_count \(now 5\)"):
        fit(scenario)


def test_without_a_platform_it_says_where_machines_are_listed() -> None:
    with pytest.raises(InputError) as caught:
        question("llama-3.1-8b")
    (problem,) = caught.value.problems
    assert problem.path == "llama-3.1-8b"
    assert problem.message.startswith('a model needs a machine: gpu="ID", such as gpu="rtx-4090" ')
    assert problem.message.endswith("(simoffload profiles list platform)")


def test_a_model_is_no_scenario() -> None:
    with pytest.raises(InputError, match=r"llama-3\.1-8b: is a model, not a scenario; question"):
        read_scenario("llama-3.1-8b")
