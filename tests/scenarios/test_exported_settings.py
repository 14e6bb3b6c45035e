"""The exported ds_config is complete: a scenario with it takes the same time to the picosecond."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simoffload
from simoffload.cli.planning import recommended
from simoffload.documents import parse_yaml
from simoffload.errors import InputError
from simoffload.planning.advise import advise
from simoffload.report.from_result import result_document
from simoffload.report.markdown import write_markdown
from simoffload.scenario import (
    LoadedScenario,
    default_scenario,
    find_scenario,
    list_scenarios,
    read_scenario,
    resolve,
)
from simoffload.simulation import simulate
from simoffload.strategies.base import memory_stages, target
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan
from simoffload.strategies.programs.zero_training import ZeroTraining, ZeroTrainingPlan

FILE = "ds_config.json"
NAMED = ("weights", "optimizer")
"""The keys of a strategy that a ds_config also has."""
OFFLOAD = ("offload_param", "offload_optimizer")


def is_zero(name: str) -> bool:
    """Whether a shipped scenario is under ZeRO."""
    path = find_scenario(name)
    return path is not None and "kind: deepspeed" in path.read_text()


SHORT = ("workload.output_length=2",)
ZERO = "strategy.kind=deepspeed"
SHIPPED = [name for name in list_scenarios() if is_zero(name)]
STUDIES = {name.rpartition("/")[0]: name for name in SHIPPED}.values()
"""One of each study: put elsewhere, the scenarios of a study differ in their models alone."""


def small(name: str) -> LoadedScenario:
    """Return a shipped scenario with three layers on one host and unchanged settings."""
    found = read_scenario(name)
    data = found.document.data
    reported, work, strategy = data["model"], data["workload"], data["strategy"]
    model = {**({"name": reported} if isinstance(reported, str) else reported), "num_hidden_layers": 3}
    work = work | ({"output_length": 2} if "output_length" in work else {})
    ranks = {"ranks": min(8, strategy.get("ranks", 1))}
    changed = {"model": model, "workload": work, "strategy": {**strategy, **ranks}, "nodes": 1}
    return resolve(replace(found.document, data={**data, **changed}))


def elsewhere(scenario: LoadedScenario) -> Iterator[LoadedScenario]:
    """Return the scenario in HBM, in host memory and on each storage tier that DeepSpeed allows."""
    training = isinstance(scenario.scenario.strategy, ZeroTraining)
    for tier in ("hbm", "dram", *scenario.machine.targets):
        for place in (f"{tier}+{tier}", f"hbm+{tier}") if training else (tier,):
            moved = scenario.on(place)
            try:
                moved.plan()
            except InputError:
                continue
            yield moved


def pasted(scenario: LoadedScenario, *without: str) -> LoadedScenario:
    """Return the scenario with the exported ds_config read from JSON, without some other keys."""
    config = json.loads(json.dumps(scenario.exports()[FILE]))
    data = scenario.document.data
    strategy = {key: value for key, value in data["strategy"].items() if key not in without}
    changed = {**data, "strategy": {**strategy, "ds_config": config}}
    return resolve(replace(scenario.document, data=changed))


def planned(scenario: LoadedScenario) -> tuple[Any, ...]:
    """Return everything except work and machine on which time and report depend."""
    plan = scenario.plan()
    rendered = (plan.warnings, memory_stages(plan), scenario.exports())
    if isinstance(plan, ZeroInferencePlan):
        return (*rendered, plan.placement)
    assert isinstance(plan, ZeroTrainingPlan)
    return (*rendered, plan.settings, plan.places)


def answer(scenario: LoadedScenario) -> Any:
    """Return a result's data without the text of the scenario."""
    found = simulate(scenario).to_dict()
    found["provenance"].pop("scenario")
    return found


@pytest.mark.parametrize("name", SHIPPED[::2])
def test_pasted_settings_of_shipped_scenarios_give_the_same_answer(name: str) -> None:
    scenario = small(name)
    assert answer(pasted(scenario, *NAMED)) == answer(scenario)
    assert planned(pasted(scenario)) == planned(scenario)


@pytest.mark.parametrize("name", [*[*STUDIES][::2], "xinnor/llama-16b-optimizer"])
def test_pasted_settings_say_where_everything_lies(name: str) -> None:
    for scenario in elsewhere(small(name)):
        assert planned(pasted(scenario, *NAMED)) == planned(scenario), "ds_config alone says it"
        assert planned(pasted(scenario)) == planned(scenario), "over the scenario"
        zero = scenario.exports()[FILE]["zero_optimization"]
        for one in (zero[section] for section in OFFLOAD if section in zero):
            assert ("nvme_path" in one) == (one["device"] == "nvme")


@pytest.mark.parametrize(
    ("target", "offload"),
    [
        ("hbm", {"device": "none"}),
        ("dram", {"device": "cpu", "pin_memory": True}),
        *(
            (
                tier,
                {
                    "device": "nvme",
                    "nvme_path": f"/mnt/{tier}",
                    "pin_memory": True,
                    "buffer_count": 5,
                    "buffer_size": 449_576_960,
                },
            )
            for tier in ("raid", "nfs", "ai400x2")
        ),
    ],
)
def test_settings_of_a_model_by_its_name_are_complete(target: str, offload: Mapping[str, Any]) -> None:
    config = default_scenario("bloom-176b", "dgx-a100", overrides=[ZERO]).on(target).exports()[FILE]
    written = config["zero_optimization"].pop("offload_param")
    assert {**written, "buffer_size": None} == {**offload, "buffer_size": None}
    if offload["device"] == "nvme":
        assert written["buffer_size"] == offload["buffer_size"], "the largest slice on one of eight ranks"
        assert config.pop("aio") == {"block_size": 1 << 20, "queue_depth": 8, "intra_op_parallelism": 1}
    assert config == {
        "train_micro_batch_size_per_gpu": 1,
        "fp16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "stage3_prefetch_bucket_size": 50_000_000,
            "stage3_param_persistence_threshold": 100_000,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
        },
    }


@pytest.mark.parametrize("target", ["hbm", "dram", "raid", "nfs", "ai400x2"])
def test_a_model_by_its_name_takes_its_settings_back(target: str) -> None:
    rendered = default_scenario("opt-125m", "dgx-a100", overrides=[ZERO, *SHORT]).on(target)
    text = json.dumps(rendered.exports()[FILE])
    back = default_scenario("opt-125m", "dgx-a100", overrides=[ZERO, *SHORT, f"strategy.ds_config={text}"])
    assert answer(back) == answer(rendered)


# -- paths and tiers -----------------------------------------------------------------------------------


def on_storage(path: str, **strategy: Any) -> LoadedScenario:
    """OPT-1.3B on a machine with three kinds of storage."""
    offload = {"device": "nvme", "nvme_path": path, "buffer_size": 4e9}
    written = {"ds_config": {"zero_optimization": {"stage": 3, "offload_param": offload}}, **strategy}
    return default_scenario("opt-1.3b", "dgx-a100", overrides=[f"strategy={json.dumps(written)}"])


@pytest.mark.parametrize(
    ("path", "tier"), [("/raid", "raid"), ("/mnt/nfs", "nfs"), ("/lustre/ai400x2/me/raid0", "ai400x2")]
)
def test_a_folder_called_after_a_tier_says_which_storage_it_is(path: str, tier: str) -> None:
    found = on_storage(path)
    assert target(found.plan()) == tier
    assert found.plan().warnings == ()
    assert found.exports()[FILE]["zero_optimization"]["offload_param"]["nvme_path"] == path


def test_of_other_paths_the_first_storage_is_taken_and_that_is_told() -> None:
    found = on_storage("/local_nvme")
    assert target(found.plan()) == "raid"
    (warning,) = found.plan().warnings
    assert warning == (
        'ds_config offload_param.nvme_path: "/local_nvme" names no tier of dgx-a100 (raid, nfs, ai400x2); '
        "raid is used; say which with strategy.weights, or end the path with the tier's name"
    )
    # What is exported names the tier.
    assert found.exports()[FILE]["zero_optimization"]["offload_param"]["nvme_path"] == "/mnt/raid"


def test_the_scenarios_word_counts_more_than_the_path() -> None:
    found = on_storage("/mnt/raid", weights="nfs")
    assert target(found.plan()) == "nfs"
    assert found.plan().warnings == (
        'ds_config offload_param.nvme_path: "/mnt/raid" contradicts weights: nfs; nfs is used',
    )
    assert found.on("ai400x2").plan().warnings == ()
    assert found.on("ai400x2").exports()[FILE]["zero_optimization"]["offload_param"]["nvme_path"] == (
        "/mnt/ai400x2"
    )


# -- what was written ------------------------------------------------------------------------------------


def test_what_is_left_to_others_has_a_value() -> None:
    """Transformers replaces "auto"; DeepSpeed alone refuses it."""
    auto = [
        "train_batch_size=auto",
        "gradient_clipping=auto",
        "fp16={enabled: auto}",
        "zero_optimization.reduce_bucket_size=auto",
        "zero_optimization.stage3_prefetch_bucket_size=auto",
        "zero_optimization.stage3_param_persistence_threshold=auto",
        "zero_optimization.offload_param.buffer_size=auto",
        "zero_optimization.overlap_comm=null",
        "optimizer={type: AdamW, params: {lr: auto}}",
        "steps_per_print=100",
    ]
    overrides = [f"strategy.ds_config.{one}" for one in auto]
    found = read_scenario("xinnor/llama-1b", overrides=[*overrides, "workload.gradient_accumulation_steps=4"])
    config = found.exports()[FILE]
    zero = config["zero_optimization"]
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (1, 4)
    assert config["gradient_clipping"] == 1.0
    assert config["bf16"] == {"enabled": True}
    assert zero["reduce_bucket_size"] == 4096**2
    assert zero["stage3_prefetch_bucket_size"] == int(0.9 * 4096**2)
    assert zero["stage3_param_persistence_threshold"] == 40_960
    assert config["optimizer"]["params"] == {"lr": "auto"}, "nothing simulated says how fast it learns"
    assert config["steps_per_print"] == 100
    config.pop("optimizer")
    assert "auto" not in json.dumps(config)
    assert "null" not in json.dumps(config)
    assert planned(pasted(found, *NAMED))[2:] == planned(found)[2:]


@pytest.mark.parametrize(("version", "key"), [("0.16.3", "thread_count"), ("0.16.4", "intra_op_parallelism")])
def test_threads_have_the_name_that_the_version_reads(version: str, key: str) -> None:
    both = "strategy.ds_config.aio={thread_count: 4, intra_op_parallelism: 4, overlap_events: true}"
    found = read_scenario(
        "ddn/bloom-7b1", overrides=[both, f'strategy.deepspeed_version="{version}"']
    ).exports()[FILE]
    assert found["aio"] == {"block_size": 1 << 20, "queue_depth": 8, key: 4, "overlap_events": True}


def test_the_models_type_is_the_one_that_is_enabled() -> None:
    found = read_scenario("xinnor/llama-1b", overrides=["model.dtype=float16"]).exports()[FILE]
    assert (found["fp16"], found["bf16"]) == ({"enabled": True}, {"enabled": False})


def test_inference_has_no_optimizer() -> None:
    zero = "strategy.ds_config.zero_optimization.offload_optimizer={device: cpu}"
    found = read_scenario(
        "ddn/bloom-7b1", overrides=[zero, "strategy.ds_config.optimizer={type: AdamW}"]
    ).exports()[FILE]
    assert "optimizer" not in found
    assert "offload_optimizer" not in found["zero_optimization"]


@pytest.mark.parametrize("kind", ["resident", "checkpoint"])
def test_what_deepspeed_is_not_told_in_a_file_has_none(kind: str) -> None:
    found = read_scenario("checkpoint/mlperf-8b" if kind == "checkpoint" else "ddn/bloom-7b1")
    assert (found if kind == "checkpoint" else found.on(kind)).exports() == {}


# -- where settings are shown ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def advice() -> simoffload.planning.advise.Advice:
    """Of a small model on storage."""
    return advise(
        read_scenario("ddn/bloom-7b1", overrides=[*SHORT, "model={name: bloom-7b1, num_hidden_layers: 3}"])
    )


def test_every_recommended_scenario_gives_what_was_promised(advice: Any, tmp_path: Path) -> None:
    files = recommended(advice)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    scenarios = sorted(name for name in files if name.endswith(".yaml"))
    assert len(scenarios) == len(advice.helping) > 5
    for name, one in zip(scenarios, advice.helping, strict=True):
        found = read_scenario(tmp_path / name)
        assert simulate(found).unit_s == one.result.unit_s
        assert found.exports() == one.scenario.exports() == one.to_dict()["exports"]
        if one.change.kind == "setting":
            assert json.loads(files[name.replace(".yaml", f".{FILE}")]) == one.scenario.exports()[FILE]


def test_results_and_reports_carry_the_complete_file(tmp_path: Path) -> None:
    result = simulate(default_scenario("opt-1.3b", "dgx-a100", overrides=[ZERO, *SHORT]))
    config = result.to_dict()["provenance"]["exports"][FILE]
    assert config["zero_optimization"]["offload_param"]["device"] == "cpu"
    write_markdown(result_document(result), tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert json.dumps(config, indent=2) in text


CAST = """\
name: cast
model: opt-1.3b
platform: dgx-a100
workload: {kind: training, batch_size: 1, sequence_length: 64}
strategy: {ranks: 1, ds_config: {zero_optimization: {stage: 2}, bf16: {enabled: true}}}
"""


def test_the_model_is_cast_to_the_data_type_that_ds_config_enables() -> None:
    """Unless the scenario states another one, which is what is simulated and exported, with a warning."""
    for stated, simulated in ((None, "bfloat16"), ("bfloat16", "bfloat16"), ("float16", "float16")):
        given = () if stated is None else (f"model.dtype={stated}",)
        result = simulate(resolve(parse_yaml(CAST, name="s.yaml"), overrides=given))
        config = result.provenance.exports[FILE]
        enabled = [key for key in ("fp16", "bf16") if config.get(key, {}).get("enabled")]
        assert result.dtype == simulated
        assert enabled == [{"bfloat16": "bf16", "float16": "fp16"}[simulated]]
        assert any("to which DeepSpeed casts" in one for one in result.warnings) == (simulated == "float16")
