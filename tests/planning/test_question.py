"""The program of a question is the best of those that people use for it, whatever is named limits it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.documents import parse_yaml
from simoffload.errors import InputError, WorkLimitError
from simoffload.planning.alternatives import class_of, formats_of
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.question import chosen_once, is_choice, opened, with_program
from simoffload.scenario import LoadedScenario, resolve
from simoffload.strategies import suited_to
from simoffload.strategies.base import state_tiers


def titles(scenario: LoadedScenario) -> list[str]:
    assert scenario.choice is not None
    return [one.title for one in scenario.choice.programs]


def rate(scenario: LoadedScenario) -> float:
    found = so.simulate(scenario).metrics()["tokens_per_s"]
    assert found is not None
    return found


@pytest.mark.parametrize(
    "machine",
    [
        {"model": "qwen3-8b", "gpu": "rtx-4090"},
        {"model": "gpt-oss-20b", "gpu": "rtx-4090", "memory": "32GB"},
        {"model": "gpt-oss-120b", "gpu": "rtx-4090", "memory": "64GB"},
        {"model": "llama-3.1-70b", "gpu": "h100-sxm", "gpus": 8},
        {"model": "opt-30b", "gpu": "rtx-4090"},
        {"model": "opt-13b", "gpu": "t4"},
        {"model": "gpt-oss-20b", "platform": "dgx-spark"},
        {"model": "qwen3-8b", "gpu": "mi300x", "gpus": 2},
    ],
    ids=lambda one: f"{one['model']}-{one.get('gpu', one.get('platform'))}",
)
def test_no_program_that_is_named_is_much_faster(machine: dict[str, Any]) -> None:
    scenario = so.question(**machine)
    kinds = suited_to("inference", scenario.model, scenario.machine)
    rates = {}
    for kind in kinds:
        with_kind = so.question(**machine, program=kind)
        assert with_kind.scenario.strategy.kind == kind
        rates[kind] = 0.0
        with suppress(InputError):  # of a model that the program does not know
            found = so.simulate(with_kind)
            rates[kind] = (found.metrics()["tokens_per_s"] or 0.0) if found.fits else 0.0
    assert rate(scenario) >= 0.9 * max(rates.values())
    sequences = {
        one.scenario.strategy.replicas * one.scenario.workload.batch_size  # type: ignore[union-attr]
        for one in (scenario, *(so.question(**machine, program=kind) for kind in kinds))
    }
    assert len(sequences) == 1  # all do the same work


def test_the_answer_names_the_others_with_their_rates() -> None:
    scenario = so.question("gpt-oss-120b", gpu="rtx-4090", memory="64GB")
    assert titles(scenario)[:2] == ["llama.cpp", "vLLM"]
    assert scenario.choice is not None
    rates = [one.tokens_per_s or 0.0 for one in scenario.choice.programs]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(rate(scenario), rel=0.01)


def test_a_tier_limits_the_choice_and_what_would_be_faster_is_said() -> None:
    scenario = so.question("llama-3.1-70b", gpu="rtx-4090", on="nvme")
    assert so.simulate(scenario).targets == ("nvme",)
    assert "llama.cpp" not in titles(scenario)
    assert scenario.choice is not None
    assert scenario.choice.named == "weights on nvme"
    assert scenario.choice.without is not None
    assert scenario.choice.without.title == "llama.cpp"


def test_a_program_that_is_named_is_where_it_must_be_or_refused() -> None:
    there = so.question("qwen3-8b", gpu="rtx-4090", program="vllm", on="dram")
    assert there.scenario.strategy.kind == "vllm"
    assert state_tiers(there.plan()) >= {"dram"}
    with pytest.raises(InputError, match=r'gpt_fast cannot be on "dram": its weights stay in the GPUs'):
        so.question("opt-6.7b", gpu="rtx-4090", program="gpt_fast", on="dram")


def test_a_drive_that_is_named_is_used() -> None:
    scenario = so.question("llama-3.1-70b", gpu="h100-sxm", gpus=8, drive="ddn-ai400x2")
    assert "pfs" in so.simulate(scenario).targets
    assert scenario.choice is not None
    assert scenario.choice.without is not None
    assert scenario.choice.without.title == "vLLM"


@pytest.mark.parametrize(
    ("gpu", "programs"), [("rtx-4090", ["llama.cpp"]), ("h100-sxm", ["vLLM", "llama.cpp"])]
)
def test_types_of_gguf_are_those_of_llama_cpp_and_on_servers_of_vllm(gpu: str, programs: list[str]) -> None:
    scenario = so.question("qwen3-8b", gpu=gpu, gpus=1, overrides=["model.quantization=q4_k_m"])
    assert titles(scenario) == programs


def test_no_more_gpus_than_are_named_are_used() -> None:
    scenario = so.question("llama-3.1-70b", gpu="a100-80g-sxm", gpus=1)
    assert scenario.scenario.strategy.gpus == 1


def test_one_card_is_one_of_a_server_unless_the_model_needs_more() -> None:
    """The server has no others then, as its price says; with all weights on several none are elsewhere."""
    short = ["workload.output_length=4", "workload.prompt_length=32", "strategy.kind=llama_cpp"]
    asked = ((None, "qwen3-8b", 1), (1, "qwen3-8b", 1), (4, "qwen3-8b", 4), (None, "qwen3-32b", 4))
    for gpus, model, found in asked:
        one = so.question(model, gpu="l4", gpus=gpus, overrides=short)
        assert (one.machine.gpus, one.scenario.strategy.gpus) == (found, found)
        assert one.choice is not None
        assert [program.where for program in one.choice.programs] == [""]
    stated = so.question("qwen3-8b", gpu="l4", overrides=[*short, "strategy.num_gpus=2"])
    assert (stated.machine.gpus, stated.scenario.strategy.gpus) == (4, 2)
    named = so.question("qwen3-8b", gpu="l4", overrides=[*short, "platform=l4-server"])
    assert named.scenario.strategy.gpus == 4


def test_settings_limit_the_choice_to_programs_that_have_them() -> None:
    scenario = so.question("qwen3-8b", gpu="rtx-4090", overrides=["strategy.cpu_offload_gb=4"])
    assert titles(scenario) == ["vLLM"]
    assert scenario.document.data["strategy"]["cpu_offload_gb"] == 4
    with pytest.raises(InputError, match=r'unknown key; did you mean "weights"\?; no program has it'):
        so.question("qwen3-8b", gpu="rtx-4090", overrides=["strategy.wieghts=dram"])
    with pytest.raises(
        InputError, match=r'strategy\.optimizer: transformers cannot keep the optimizer on "dram"'
    ):
        so.question(
            "qwen3-0.6b",
            gpu="rtx-4090",
            program="transformers",
            overrides=["workload.kind=training", "strategy.optimizer=dram"],
        )
    with pytest.raises(InputError, match="no program has weights_gpu_percent, gpu_layers together"):
        so.question(
            "opt-30b",
            gpu="rtx-4090",
            overrides=["strategy.weights_gpu_percent=50", "strategy.gpu_layers=3"],
        )


def test_a_program_must_be_for_the_work() -> None:
    with pytest.raises(InputError, match=r"^program: fsdp: is not for a workload of inference; use best, "):
        so.question("qwen3-8b", gpu="rtx-4090", program="fsdp")
    with pytest.raises(
        InputError, match=r'^program: flexgem: is no program that is modelled; did you mean "flexgen"\?'
    ):
        so.question("qwen3-8b", gpu="rtx-4090", program="flexgem")


def test_one_program_is_named_once() -> None:
    for override in ("strategy.kind=vllm", "strategy={kind: vllm}"):
        with pytest.raises(InputError, match=r"contradicts overrides strategy.*leave out one of them"):
            so.question("qwen3-8b", gpu="rtx-4090", program="llama_cpp", overrides=[override])


def test_programs_beyond_a_limit_are_named() -> None:
    whole = so.question("qwen3-8b", gpu="rtx-4090").choice
    short = so.question("qwen3-8b", gpu="rtx-4090", overrides=["engine.max_events=3000"]).choice
    assert whole is not None
    assert short is not None
    assert whole.untried == ()
    assert short.untried == ("llama.cpp",)
    with pytest.raises(WorkLimitError):
        so.question("qwen3-8b", gpu="rtx-4090", overrides=["engine.max_events=10"])


def test_training_has_programs_of_its_own() -> None:
    scenario = so.question("llama-3.1-8b", gpu="h100-sxm", gpus=8, overrides=["workload.kind=training"])
    assert titles(scenario)[0] == "FSDP"
    assert "DeepSpeed ZeRO" in titles(scenario)


def test_what_fits_nowhere_is_left_to_the_first_program() -> None:
    scenario = so.question(
        "llama-3.1-405b", gpu="rtx-4090", memory="32GB", program="zero_inference", on="dram"
    )
    assert scenario.choice is None
    assert not so.simulate(scenario).fits


YAML = """
name: one
model: qwen3-8b
platform: rtx-4090-desktop
workload: {kind: inference, batch_size: 2, prompt_length: 256, output_length: 16}
"""


def test_a_file_without_a_program_has_the_best(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(YAML)
    scenario = so.load_scenario(tmp_path / "one.yaml")
    assert scenario.choice is not None
    assert rate(scenario) == pytest.approx(scenario.choice.programs[0].tokens_per_s, rel=0.01)


def test_keys_of_one_program_choose_it_without_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(f"{YAML}strategy: {{ds_config: {{}}, weights: dram}}\n")
    scenario = so.load_scenario(tmp_path / "one.yaml")
    assert scenario.choice is None
    assert so.simulate(scenario).targets == ("dram",)


def test_a_scenario_gets_another_program_for_the_same_work() -> None:
    before = so.load_scenario("ddn/bloom-7b1")
    after = with_program(before, "best")
    assert is_choice(after)
    found = so.simulate(after)
    work = before.scenario.workload
    assert found.replicas * found.batch_size == before.scenario.strategy.replicas * work.batch_size  # type: ignore[union-attr,attr-defined]
    assert (found.metrics()["tokens_per_s"] or 0) > (so.simulate(before).metrics()["tokens_per_s"] or 0)


def test_places_have_one_program() -> None:
    document = parse_yaml(f"{YAML}strategy: {{kind: best}}\n", name="one.yaml", root=Path())
    scenario = resolve(document)
    found = chosen_once({tier: scenario.on(tier) for tier in ("hbm", "dram", "nvme")})
    assert len({one.scenario.strategy.kind for one in found.values()}) == 1
    assert [so.simulate(one).targets[0] for one in found.values()] == ["hbm", "dram", "nvme"]


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ("deepseek-v4-flash", "q2_k"),
        ("qwen3.5-397b-a17b", "iq2_xxs"),
        ("qwen3.5-397b-a17b:q4_k_m", "iq2_xxs"),
    ],
)
def test_memory_without_room_for_four_bits_has_the_largest_smaller_form(model: str, form: str) -> None:
    """Memory that GPU and host share counts once."""
    evaluator = Evaluator(opened(model, platform="dgx-spark", overrides=["strategy.kind=llama_cpp"]))
    *usual, smaller = formats_of(evaluator, class_of("llama_cpp"))
    assert smaller == form
    room = 120 * 2**30
    assert evaluator.in_format(form) < room < min(map(evaluator.in_format, usual), default=2 * room)


def test_memory_with_room_for_four_bits_has_no_smaller_form() -> None:
    evaluator = Evaluator(opened("qwen3-32b", platform="dgx-spark", overrides=["strategy.kind=llama_cpp"]))
    assert formats_of(evaluator, class_of("llama_cpp")) == ("q8_0", "q6_k", "q4_k_m")


def test_what_fits_in_no_form_of_its_program_names_one_that_does() -> None:
    """DeepSpeed, which is tried, too, has too few buffers for these layers: that is no answer."""
    scenario = so.question("qwen3.5-397b-a17b:q4_k_m", platform="dgx-spark", program="llama_cpp")
    assert not so.simulate(scenario).fits
    found = so.smallest_changes(scenario)
    assert any("stored as iq2_xxs" in one.description for one in found), found
