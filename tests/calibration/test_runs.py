"""Run files are read; settings that the run would not follow are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload_calibrate.launch import LaunchSettings, case_data, check, describe
from simoffload_calibrate.runs import read_requests

RUN: dict[str, Any] = {
    "name": "one",
    "model": {"name": "opt-1.3b"},
    "workload": {"kind": "inference", "batch_size": 2, "prompt_length": 8, "output_length": 3},
    "strategy": {"ranks": 1, "ds_config": {"zero_optimization": {"stage": 3}}},
}
TRAINING = {"kind": "training", "batch_size": 1, "sequence_length": 8}
NVME = {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "buffer_size": 2e8}}}

UNKNOWN_DEVICE = {"zero_optimization": {"stage": 3, "offload_param": {"device": "x"}}}


def written(tmp_path: Path, data: Any) -> Path:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(data))
    return path


def settings(tmp_path: Path, **changes: Any) -> LaunchSettings:
    usual = LaunchSettings(
        folder=tmp_path / "out",
        swap_folder=tmp_path / "swap",
        largest=10**10,
        seconds_per_case=60,
        seconds=600,
        trace=True,
    )
    return usual._replace(**changes)


def test_a_scenario_is_a_run(tmp_path: Path) -> None:
    (case,) = read_requests([written(tmp_path, {**RUN, "platform": "dgx-h200", "nodes": 1})])
    assert (case.ranks, case.device, case.swap_bytes) == (1, "none", 0)
    assert case.hf_config["model_type"] == "opt"


def test_accelerate_and_tensor_parallelism_are_runs(tmp_path: Path) -> None:
    shape = {
        "name": "two",
        "model": {"name": "llama-3.2-1b"},
        "strategy": {"kind": "transformers", "tensor_parallel_size": 2},
    }
    offloaded = [
        {"kind": "accelerate", "device_map": "cpu"},
        {"kind": "accelerate", "device_map": 8, "offload_folder": "nvme"},
        {"kind": "accelerate", "device_map": {"": 0}},
        {"kind": "accelerate"},
    ]
    runs = [RUN | shape, *(RUN | {"name": f"{one}", "strategy": one} for one in offloaded)]
    divided, cpu, disk, whole, auto = read_requests([written(tmp_path, {"runs": runs})])
    assert (divided.ranks, divided.device, divided.ds_config) == (2, "none", None)
    assert divided.swap_bytes == divided.weight_bytes, "rank 0 writes files that both ranks load"
    assert [one.device for one in (cpu, disk, whole, auto)] == ["cpu", "nvme", "none", "cpu"]
    assert [one.swap_bytes for one in (cpu, disk)] == [0, disk.weight_bytes]
    assert cpu.homes is not None
    assert set(cpu.homes.values()) == {"cpu"}
    assert disk.homes is not None
    assert list(disk.homes.values()).count("disk") == 16
    assert auto.homes is None, "Accelerate decides"
    assert "accelerate, 1.32e9 parameters, 1 rank, offload cpu" in describe([cpu], settings(tmp_path))


@pytest.mark.parametrize(
    ("zero", "words"),
    [
        ({"stage": 3}, "offload none"),
        ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, "offload optimizer cpu"),
        (
            {"stage": 3, "offload_optimizer": {"device": "nvme"}, "offload_param": {"device": "cpu"}},
            "offload parameters cpu, optimizer nvme, writes",
        ),
        (
            {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
            "offload cpu",
        ),
    ],
)
def test_what_training_offloads_is_said(zero: dict[str, Any], words: str, tmp_path: Path) -> None:
    for section in ("offload_optimizer", "offload_param"):
        if section in zero and zero[section]["device"] == "nvme":
            zero[section] |= {"nvme_path": "/nvme"}
    training = {"kind": "training", "batch_size": 1, "sequence_length": 128}
    strategy = {"ds_config": {"zero_optimization": zero}}
    (case,) = read_requests([written(tmp_path, RUN | {"workload": training, "strategy": strategy})])
    assert words in describe([case], settings(tmp_path))


def test_weights_stand_for_a_ds_config(tmp_path: Path) -> None:
    (case,) = read_requests([written(tmp_path, RUN | {"strategy": {"weights": "nvme"}})])
    assert case.device == "nvme"
    assert case.swap_bytes == 2 * case.num_parameters


def test_fsdp_has_parameters_and_optimizer_in_one_place(tmp_path: Path) -> None:
    offloaded = RUN | {"name": "two", "workload": TRAINING, "strategy": {"kind": "fsdp", "cpu_offload": True}}
    runs = [RUN | {"workload": TRAINING, "strategy": {"kind": "fsdp", "ranks": 2}}, offloaded]
    found = read_requests([written(tmp_path, {"runs": runs})])
    assert [(one.kind, one.ranks, one.device, one.optimizer) for one in found] == [
        ("fsdp", 2, "none", "none"),
        ("fsdp", 1, "cpu", "cpu"),
    ]
    assert found[1].host_bytes - found[0].host_bytes == found[1].weight_bytes
    data = case_data(0, found[0], trace=True)
    assert data["strategy"]["reshard_after_forward"] is True
    assert data["kv_cache"] is None


@pytest.mark.parametrize(
    ("changes", "rendered"),
    [
        ({"strategy": {"ds_config": {"zero_optimization": {"stage": 2}}}}, "stage: must be 3"),
        ({"strategy": {"weights": "hbm", "ds_config": NVME}}, 'weights: "hbm" contradicts ds_config'),
        (
            {"workload": TRAINING, "strategy": {"kind": "fsdp", "ranks": 4096}},
            "strategy.ranks: a run is made on one machine with at most 8 GPUs, not 4,096",
        ),
        (
            {"strategy": {"kind": "transformers", "tensor_parallel_size": 16, "ranks": 16}},
            "strategy.ranks: a run is made",
        ),
        ({"strategy": {"kind": "transformers", "ranks": 2}}, "strategy.ranks: one copy of the model runs"),
        ({"strategy": {"kind": "accelerate", "device_map": 99}}, "runs[0].strategy.device_map: 99 layers"),
        (
            {
                "workload": TRAINING,
                "strategy": {"kind": "accelerate"},
            },
            "accelerate does not train",
        ),
        ({"strategy": {"kind": "fsdp"}}, "runs[0].workload.kind: must be training: fsdp does not generate"),
        (
            {"workload": TRAINING, "strategy": {"kind": "fsdp", "lora": {"r": 8}}},
            "runs[0].strategy.lora: all weights are trained with PyTorch's AdamW here; remove it",
        ),
        (
            {"workload": TRAINING, "strategy": {"kind": "fsdp", "optimizer": "AdamW8bit"}},
            "runs[0].strategy.optimizer: all weights are trained with PyTorch's AdamW here; remove it",
        ),
        ({"workload": {**RUN["workload"], "prompt_length": 5000}}, "exceed the 2048 positions"),
        (
            {
                "strategy": {
                    "ds_config": {"zero_optimization": {"stage": 3, "offload_param": {"device": "x"}}}
                }
            },
            "runs[0].strategy.ds_config.zero_optimization.offload_param.device",
        ),
    ],
)
def test_what_says_one_thing_and_would_do_another(
    tmp_path: Path, changes: dict[str, Any], rendered: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_requests([written(tmp_path, {"runs": [RUN | changes]})])
    assert rendered in str(caught.value)


def test_a_list_holds_runs_of_different_names_and_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'runs\[1\].name: "one" is the name of an earlier run'):
        read_requests([written(tmp_path, {"runs": [RUN, RUN]})])
    path = written(tmp_path, RUN)
    with pytest.raises(InputError, match=r'name: "one" is the name of an earlier run in .*runs'):
        read_requests([path, path])
    with pytest.raises(InputError, match='foo: unknown key next to "runs"'):
        read_requests([written(tmp_path, {"runs": [RUN], "foo": 1})])
    with pytest.raises(InputError, match="must be a list of runs"):
        read_requests([written(tmp_path, {"runs": None})])


def test_another_number_of_ranks_replaces_that_of_every_run(tmp_path: Path) -> None:
    two = RUN | {"name": "two", "strategy": {"ranks": 2, "weights": "cpu"}}
    path = written(tmp_path, {"runs": [RUN, two]})
    assert [case.ranks for case in read_requests([path], ranks=4)] == [4, 4]
    assert [case.ranks for case in read_requests([path])] == [1, 2]
    assert [case.ranks for case in read_requests([written(tmp_path, RUN)], ranks=4)] == [4]


def test_runs_without_ranks_are_all_named(tmp_path: Path) -> None:
    without = [
        RUN | {"name": f"{one}", "strategy": one}
        for one in (
            {"weights": "cpu"},
            {"kind": "accelerate"},
            {"kind": "transformers", "tensor_parallel_size": 2},
        )
    ]
    with pytest.raises(InputError) as caught:
        read_requests([written(tmp_path, {"runs": [RUN, *without]})], ranks=4)
    assert [problem.key for problem in caught.value.problems] == [f"runs[{i}].strategy" for i in (1, 2, 3)]
    for problem in caught.value.problems:
        assert problem.message.startswith("states no ranks that --ranks 4 could replace; write ranks: 1 (")
    with pytest.raises(InputError, match=r"^--ranks: runs\[0\].strategy.ranks: must be at most 8, got 9$"):
        read_requests([written(tmp_path, {"runs": [RUN]})], ranks=9)


def test_the_lists_for_several_gpus_have_no_run_in_common() -> None:
    folder = Path(__file__).parents[2] / "validation" / "runs"
    in_view, held_out = (
        read_requests([folder / name], ranks=4) for name in ("several-gpus.yaml", "several-gpus-holdout.yaml")
    )
    assert {case.ranks for case in (*in_view, *held_out)} == {4}
    assert not {case.request.name for case in in_view} & {case.request.name for case in held_out}


def test_folders_are_looked_at_before_anything_runs(tmp_path: Path) -> None:
    cases = read_requests([written(tmp_path, RUN | {"strategy": {"ds_config": NVME}})])
    assert "files go to" in describe(cases, settings(tmp_path))
    check(cases, settings(tmp_path))
    (tmp_path / "file").touch()
    for changes, rendered in (
        ({"folder": tmp_path}, "is not an empty folder"),
        ({"swap_folder": tmp_path / "file"}, "is not an empty folder, and runs empty it"),
        ({"swap_folder": tmp_path / "file" / "x"}, "is below|cannot be used"),
        ({"largest": 10**9}, r"would write 2.63 GB of files, above --max-size 1 GB"),
    ):
        with pytest.raises(InputError, match=rendered):
            check(cases, settings(tmp_path, **changes))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "runs.json"]
