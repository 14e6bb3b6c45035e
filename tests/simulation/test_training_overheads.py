"""Training with the sections ``checkpoint`` and ``dataset``: against the same worked out by itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simoffload.documents import parse_json
from simoffload.errors import InputError
from simoffload.extensions.storage.data_loading import predict_data_loading
from simoffload.extensions.storage.result import CheckpointResult
from simoffload.planning.targets import on_targets
from simoffload.results.training import TrainingResult
from simoffload.scenario import LoadedScenario, resolve
from simoffload.simulation import fit, simulate
from simoffload.strategies import base
from simoffload.workload import Dataset

DATA = {"tier": "nfs", "sample_size": "16 KiB", "samples": 1_000_000, "samples_per_file": 1000}
NVME = {"device": "nvme", "pin_memory": True}
DIRECT = {"checkpoint_serialization": False, "writer": {"type": "fast", "io_buffer_size": 128 << 20}}


def scenario(
    *, zero: dict[str, Any] | None = None, checkpoint: Any = None, dataset: Any = None, nodes: int = 1,
    ranks: int = 2, layers: int = 4, platform: str = "dgx-h100", config: dict[str, Any] | None = None,
    accumulation: int = 2, **strategy: Any,
) -> LoadedScenario:  # fmt: skip
    tree: dict[str, Any] = {
        "name": "trained",
        "model": {"name": "llama-2-7b", "num_hidden_layers": layers},
        "platform": platform,
        "nodes": nodes,
        "workload": {
            "kind": "training",
            "batch_size": 2,
            "sequence_length": 512,
            "gradient_accumulation_steps": accumulation,
        },
        "strategy": {
            "ranks": ranks,
            "ds_config": {"zero_optimization": {"stage": 3, **(zero or {})}, **(config or {})},
            **strategy,
        },
    }
    if checkpoint is not None:
        tree["checkpoint"] = checkpoint
    if dataset is not None:
        tree["dataset"] = dataset
    return resolve(parse_json(json.dumps(tree), name="trained.json"))


def trained(**options: Any) -> TrainingResult:
    result = simulate(scenario(**options))
    assert isinstance(result, TrainingResult)
    assert result.fits, result.advice
    return result


def alone(run: TrainingResult, *, ranks: int = 2, layers: int = 4, **workload: Any) -> CheckpointResult:
    """The same checkpoints as a scenario of their own, the run's step time written down."""
    assert run.step_s is not None
    tree = {
        "name": "saved",
        "model": {"name": "llama-2-7b", "num_hidden_layers": layers},
        "platform": "dgx-h100",
        "workload": {
            "kind": "checkpoint",
            "step_time": f"{run.step_s!r} s",
            "update_time": f"{run.optimizer_s!r} s",
            **workload,
        },
        "strategy": {"ranks": ranks, "tier": "pfs"},
    }
    result = simulate(resolve(parse_json(json.dumps(tree), name="saved.json")))
    assert isinstance(result, CheckpointResult)
    return result


@pytest.mark.parametrize(
    ("zero", "workload"),
    [
        ({}, {}),
        ({"offload_optimizer": {"device": "cpu"}}, {"offload_optimizer": "cpu"}),
        ({"stage": 2}, {"stage": 2}),
        ({"sub_group_size": 10**7}, {"sub_group_size": 10**7}),
    ],
)
def test_checkpoints_of_a_run_are_those_of_a_scenario_of_their_own(
    zero: dict[str, Any], workload: dict[str, Any]
) -> None:
    options = {"interval_steps": 50, "node_mtbf": "1000 h", "keep": 2}
    run = trained(zero=zero, checkpoint={"tier": "pfs", **options})
    other = alone(run, **options, **workload)
    assert run.checkpoint is not None
    mine, theirs = run.checkpoint, other.checkpoint
    assert (mine.size, mine.parts, mine.outlook) == (theirs.size, theirs.parts, theirs.outlook)
    assert run.step_s
    assert mine.outlook is not None
    assert mine.outlook.interval_s == pytest.approx(50 * run.step_s)


def test_the_step_itself_does_not_change() -> None:
    plain, more = trained(), trained(checkpoint={"tier": "pfs"}, dataset=DATA)
    assert plain.metrics() == more.metrics()
    assert (plain.checkpoint, plain.data_loading, plain.drive_lifetime) == (None, None, ())


def test_the_writer_of_ds_config_is_honoured() -> None:
    """FastPersist of ds_config, its requests those of aio; what the scenario has to say counts more."""
    config = {"checkpoint": DIRECT, "aio": {"block_size": 8 << 20, "queue_depth": 4}}
    writer = {"type": "fast", "patched_torch": True}
    fast = scenario(config=config, checkpoint={"tier": "pfs", "writer": writer})
    plan = fast.plan().saved
    assert plan is not None
    used = plan.workload.writer
    assert used.is_direct
    assert (used.io_buffer_size, used.block_size, used.queue_depth) == (128 << 20, 8 << 20, 4)
    smaller = scenario(
        config=config, checkpoint={"tier": "pfs", "writer": {**writer, "io_buffer_size": "32 MiB"}}
    )
    plan = smaller.plan().saved
    assert plan is not None
    assert plan.workload.writer.io_buffer_size == 32 << 20
    plain = trained(checkpoint={"tier": "pfs"})
    direct = trained(config=config, checkpoint={"tier": "pfs", "writer": writer})
    assert plain.checkpoint is not None
    assert direct.checkpoint is not None
    assert (plain.checkpoint.writer, direct.checkpoint.writer) == ("torch_save", "fast")
    assert plain.checkpoint.outlook is not None
    assert direct.checkpoint.outlook is not None
    assert direct.checkpoint.outlook.stall_s < 0.5 * plain.checkpoint.outlook.stall_s


def test_a_decoupled_writer_of_ds_config_makes_the_mode() -> None:
    section = {"writer": {"type": "FAST", "decoupled": True}}
    run = trained(config={"checkpoint": section}, checkpoint={"tier": "pfs"}, accumulation=64)
    assert run.checkpoint is not None
    assert (run.checkpoint.mode, run.checkpoint.writer) == ("decoupled", "fast")
    assert run.checkpoint.outlook is not None
    window = (run.step_s or 0) - (run.optimizer_s or 0)
    outlook = run.checkpoint.outlook
    assert outlook.stall_s == pytest.approx(max(0.0, outlook.background_s - window))
    blocking = trained(config={"checkpoint": section}, checkpoint={"tier": "pfs", "mode": "blocking"})
    assert blocking.checkpoint is not None
    assert blocking.checkpoint.mode == "blocking"
    assert not any("give step_time" in text for text in run.warnings)


def test_keys_of_ds_config_that_do_nothing_are_warned_about() -> None:
    section = {"writer": {"type": "fast", "io_multiplier": 2, "bufer": 1}, "tag_validation": "Warn"}
    rendered = " ".join(trained(config={"checkpoint": section}, checkpoint={"tier": "pfs"}).warnings)
    assert "checkpoint.writer.io_multiplier: 2 is not modelled" in rendered
    assert "checkpoint.writer.bufer: unknown key" in rendered
    assert "tag_validation" not in rendered
    assert "io_multiplier" not in " ".join(trained(config={"checkpoint": section}).warnings)


def test_files_take_their_place_all_the_time() -> None:
    """Three checkpoints of 12 B a parameter; the data lies on each of two hosts' drives."""
    data = {**DATA, "tier": "raid"}
    run = trained(checkpoint={"tier": "pfs", "keep": 3}, dataset=data, nodes=2, ranks=16)
    uses = {use.tier: use for use in run.capacity}
    assert run.checkpoint is not None
    assert uses["pfs"].needed == 3 * run.checkpoint.size
    assert uses["pfs"].needed == pytest.approx(3 * 12 * run.parameters, rel=1e-3)
    assert uses["raid"].needed == 2 * 1_000_000 * 16_384
    assert {name for name, tiers in run.memory_stages for use in tiers if use.tier == "pfs"} == {
        name for name, _ in run.memory_stages
    }
    assert run.memory_stages[-1][0] == "checkpoint"


def test_a_checkpoint_needs_its_buffers_on_top() -> None:
    writer = {"type": "fast", "patched_torch": True, "checkpoint_serialization": False}
    offload = {"offload_optimizer": {"device": "cpu"}}
    run = trained(checkpoint={"tier": "pfs", "writer": writer}, zero=offload)
    memory_stages = dict(run.memory_stages)
    system = {"operating system and processes": 16 << 30}
    before = {term.name: term.size for use in list(memory_stages.values())[-2] for term in use.terms}
    during = {term.name: term.size for use in memory_stages["checkpoint"] for term in use.terms}
    assert during == before | system | {"I/O buffers": 2 * 64 << 20}


def test_a_filesystem_that_is_full_stops_the_run() -> None:
    result = fit(scenario(checkpoint={"tier": "raid", "keep": 100_000}))
    assert not result.fits
    assert "lower keep: 100000 (largest part: saved checkpoints)" in " ".join(result.advice)
    full = fit(scenario(dataset={**DATA, "samples": 10**12}))
    assert "put the dataset elsewhere" in " ".join(full.advice)
    stopped = simulate(scenario(checkpoint={"tier": "raid", "keep": 100_000}, dataset=DATA))
    assert isinstance(stopped, TrainingResult)
    assert stopped.data_loading is None
    assert stopped.checkpoint is not None
    assert stopped.checkpoint.outlook is None


def test_reading_is_that_of_the_step() -> None:
    loaded = scenario(dataset=DATA)
    run = trained(dataset=DATA)
    assert run.step_s
    assert run.optimizer_s is not None
    assert run.data_loading is not None
    other = predict_data_loading(
        Dataset.model_validate(DATA),
        loaded.machine,
        ranks=2,
        batch_size=2,
        step_time=run.step_s,
        gradient_accumulation_steps=2,
        pause_time=run.optimizer_s,
    )
    assert run.data_loading.cold == other.cold
    assert run.data_loading.cold.limit == "gpu"
    assert run.data_loading.cold.needed == pytest.approx(2 * 2 * 2 * 20_479 / run.step_s)  # 4096 + 16384 - 1
    assert not any("dataset" in text for text in run.warnings)


def test_what_training_holds_is_no_page_cache() -> None:
    run = trained(dataset=DATA, zero={"offload_optimizer": {"device": "cpu"}})
    assert run.data_loading is not None
    (dram,) = (use for use in run.capacity if use.tier == "dram")
    assert run.data_loading.cache == dram.headroom
    assert run.data_loading.look_ahead == 2 * 2 * 2 * 2 * 16_384


def test_gpus_that_starve_are_warned_about() -> None:
    slow = {**DATA, "decode_time": "200 ms"}
    run = trained(dataset=slow)
    assert run.data_loading is not None
    assert run.data_loading.cold.limit == "decode"
    assert run.data_loading.cold.starvation > 0
    (text,) = (text for text in run.warnings if text.startswith("dataset"))
    assert "the GPUs wait for data" in text
    assert f"{run.data_loading.workers_needed} workers per rank would be enough" in text


def test_the_steps_own_reads_leave_less_to_the_data() -> None:
    """The optimizer's states and the data on the same drives."""
    offload = {"offload_optimizer": NVME}
    data = {**DATA, "tier": "raid", "workers": 64, "requests_in_flight": 64}
    quiet = trained(dataset=data, zero={"offload_optimizer": {"device": "cpu"}})
    busy = trained(dataset=data, zero=offload, optimizer="raid")
    assert quiet.data_loading is not None
    assert busy.data_loading is not None
    assert busy.data_loading.cold.reachable < quiet.data_loading.cold.reachable


def test_wear_of_steps_and_checkpoints_adds_up() -> None:
    """What the step's table says is written, and a checkpoint every ten steps."""
    run = trained(zero={"offload_optimizer": NVME}, checkpoint={"tier": "raid", "interval_steps": 10})
    (traffic,) = run.traffic
    (worn,) = run.drive_lifetime
    assert run.step_s
    assert run.checkpoint is not None
    assert run.checkpoint.outlook is not None
    step = run.step_s + run.checkpoint.outlook.stall_s / 10
    written = traffic.written + run.checkpoint.written / 10
    assert worn.drive_lifetime.per_step == pytest.approx(written)
    assert worn.drive_lifetime.per_drive_day == pytest.approx(written * 86_400 / step / 8)
    assert worn.drive_lifetime.years == pytest.approx(
        3.84e12 * 365 * 5 / (worn.drive_lifetime.per_drive_day * 365)
    )
    assert any(text.startswith("drives wear out: raid") for text in run.warnings)
    other = trained(zero={"offload_optimizer": NVME}, checkpoint={"tier": "raid"})
    assert other.drive_lifetime[0].drive_lifetime.per_step == traffic.written  # nobody knows how often


def test_json_has_the_sections() -> None:
    run = trained(
        checkpoint={"tier": "pfs", "interval": "1 h"}, dataset=DATA, zero={"offload_optimizer": NVME}
    )
    data = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert data["checkpoint"]["outlook"]["interval_s"] == 3600
    assert data["data_loading"]["epochs"][0]["limit"] == "gpu"
    assert data["data_loading"]["workers_needed"] == 1
    assert data["drive_lifetime"][0]["tier"] == "raid"
    plain = trained().to_dict()
    assert (plain["checkpoint"], plain["data_loading"], plain["drive_lifetime"]) == (None, None, [])


def test_a_resident_model_is_saved_as_stage_0() -> None:
    loaded = scenario(checkpoint={"tier": "pfs"}).on("resident")
    plan = loaded.plan().saved
    assert plan is not None
    assert plan.workload.stage == 0
    assert plan.size == pytest.approx(14 * loaded.model.num_parameters)


@pytest.mark.parametrize(
    ("target", "weights", "optimizer"),
    [
        ("hbm+raid", "hbm", "raid"),
        ("dram+dram", "dram", "dram"),
        ("dram", "dram", "raid"),
        ("gpu", "hbm", "raid"),
    ],
)
def test_targets_of_training(target: str, weights: str, optimizer: str) -> None:
    """Both places, or the weights alone while the optimizer stays where ds_config has it."""
    moved = scenario(zero={"offload_optimizer": NVME}).on(target)
    plan = moved.plan()
    assert (base.target(plan), base.optimizer_target(plan)) == (weights, optimizer)
    assert plan.warnings == ()
    again = resolve(parse_json(json.dumps(moved.document.data), name="again.json")).plan()
    assert (base.target(again), base.optimizer_target(again)) == (weights, optimizer)


def test_options_that_contradict_the_run_are_placed_in_the_section() -> None:
    with pytest.raises(InputError, match="copied file by file") as raised:
        scenario(zero={"offload_optimizer": NVME}, checkpoint={"tier": "pfs", "contents": "sharded"}).plan()
    assert raised.value.problems[0].key == "checkpoint"


@pytest.mark.parametrize(
    ("optimizer", "each"), [("AdamW", 12), ("SGD", 8), ("AdamW8bit", 6), ("Adafactor", 8)]
)
def test_bytes_follow_the_runs_optimizer(optimizer: str, each: int) -> None:
    """Master weights, and two states of 4 B, one, two of 1 B, one on flat partitions."""
    loaded = scenario(checkpoint={"tier": "pfs"}, config={"optimizer": {"type": optimizer}})
    plan = loaded.plan().saved
    assert plan is not None
    assert plan.size == pytest.approx(each * loaded.model.num_parameters, rel=1e-6)


def test_another_platform_must_have_the_sections_tiers() -> None:
    loaded = scenario(platform="dgx-a100", checkpoint={"tier": "ai400x2"})
    with pytest.raises(InputError, match='no storage tier "ai400x2" on platform "dgx-h100"'):
        on_targets(loaded, ["hbm", "dgx-h100:hbm"])
