"""Runs of vLLM by the command line, with a package in place of it, and their comparison."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from simoffload.cli import main
from simoffload_calibrate import launch
from simoffload_calibrate.compare import compare_file
from simoffload_calibrate.records import read_records
from tests.calibration.fake_vllm import write_packages

SERVED = {"kind": "vllm"}
BATCHES: dict[str, Any] = {
    "name": "batches",
    "model": {"name": "llama-3.1-8b", "dtype": "bfloat16"},
    "workload": {"kind": "inference", "batch_size": [1, 4], "prompt_length": 64, "output_length": 12},
    "strategy": SERVED,
}
STREAM: dict[str, Any] = {
    "name": "stream",
    "model": BATCHES["model"],
    "stream": {
        "num_prompts": 20,
        "arrivals": {"kind": "poisson", "request_rate": [400, 800]},
        "prompt": {"kind": "uniform", "min": 20, "max": 60},
        "output": {"kind": "fixed", "tokens": 5},
        "prefixes": [{"tokens": {"kind": "fixed", "tokens": 32}}],
    },
    "strategy": SERVED,
}


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_packages(tmp_path / "packages")
    paths = [str(tmp_path / "packages"), str(Path(__file__).parents[2])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.jsonl"))
    monkeypatch.setattr(launch, "missing_packages", lambda _: ())
    monkeypatch.setattr(launch, "_PROBE", "fake_probe:probe")


def calibrate(tmp_path: Path, *runs: dict[str, Any], options: tuple[str, ...] = ()) -> int:
    (tmp_path / "runs.yaml").write_text(json.dumps({"runs": list(runs)}))
    return main(["calibrate", "vllm", str(tmp_path / "runs.yaml"), "-o", str(tmp_path / "out"), *options])


def written(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "out" / "runs.json").read_text())
    return found


def started(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]


def test_batches_and_streams_share_an_engine(tmp_path: Path) -> None:
    assert calibrate(tmp_path, BATCHES, STREAM) == 0
    data = written(tmp_path)
    assert data["schema"] == "simoffload/vllm-runs/1"
    assert len(data["probes"]) == 2
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["log.txt", "runs.json"]
    one, four, slow, fast = data["runs"]
    assert [run["name"] for run in data["runs"]] == [
        "batches, batch_size 1",
        "batches, batch_size 4",
        "stream, request_rate 400",
        "stream, request_rate 800",
    ]
    (engine,) = started(tmp_path)
    assert engine["given"]["load_format"] == "dummy"
    assert engine["given"]["dtype"] == engine["config"]["torch_dtype"] == "bfloat16"
    assert engine["given"]["max_model_len"] == 20_480
    assert engine["config"]["architectures"] == ["LlamaForCausalLM"]
    assert engine["environment"]["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert engine["environment"]["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert "VLLM_USE_V2_MODEL_RUNNER" not in engine["environment"]
    assert one["engine"]["kv_blocks"] == 20_000
    assert one["engine"]["memory"] == {"weights": 16_000_000_000, "peak_activation": 5}
    # Steps 4 to 9 of the 11 after the prefill, in the four batches after the one that is not counted.
    assert {step["name"] for step in four["passes"]} == {"prefill", *(f"decode {n}" for n in range(4, 10))}
    assert {step["repetition"] for step in four["passes"]} == {1, 2, 3, 4}
    assert all(0.001 <= step["seconds"] < 0.1 for step in four["passes"])
    for run in (slow, fast):
        requests = run["requests"]
        assert requests["made"] == [5] * 20
        for at in range(20):
            assert requests["arrived"][at] == pytest.approx(requests["arrival"][at], abs=1e-6)
            assert requests["arrived"][at] < requests["added"][at] < requests["first"][at]
            assert requests["first"][at] + 0.004 <= requests["last"][at]
        assert sum(run["steps"]["tokens"]) == sum(requests["prompt"]) + 4 * 20


def test_a_run_in_which_kernels_are_compiled_is_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiling = {**STREAM, "stream": {**STREAM["stream"], "num_prompts": 1, "prefixes": []}}
    compiling["stream"] |= {
        "arrivals": {"kind": "constant", "request_rate": 100},
        "prompt": {"kind": "fixed", "tokens": 333},
    }
    assert calibrate(tmp_path, compiling) == 0
    assert [run["compilations"] for run in written(tmp_path)["runs"]] == [0]
    (tmp_path / "out" / "runs.json").rename(tmp_path / "kept.json")
    (tmp_path / "out" / "log.txt").unlink()
    assert calibrate(tmp_path, compiling, options=("--quick",)) == 0
    assert [run["compilations"] for run in written(tmp_path)["runs"]] == [1]
    capsys.readouterr()
    path = str(tmp_path / "out" / "runs.json")
    assert main(["calibrate", "compare", path, "--platform", "h100-1gpu-vm"]) == 0
    shown = capsys.readouterr().out
    assert "1 kernel compiled during the run" in shown
    assert shown.endswith("0 runs; 1 more is left out, as kernels were compiled while they were timed.\n")


@pytest.mark.parametrize(("model", "zeroed"), [("llama-3.1-8b", False), ("qwen3-30b-a3b", True)])
def test_biases_of_mixtures_are_removed(tmp_path: Path, model: str, zeroed: bool) -> None:
    assert calibrate(tmp_path, {**BATCHES, "model": model}, options=("--quick",)) == 0
    assert (tmp_path / "seen.jsonl.zeroed").exists() == zeroed


def test_a_first_look_captures_no_larger_graphs_than_stated(tmp_path: Path) -> None:
    few = {**BATCHES, "strategy": {**SERVED, "max_cudagraph_capture_size": 16}}
    assert calibrate(tmp_path, few, options=("--quick",)) == 0
    (engine,) = started(tmp_path)
    assert engine["given"]["cudagraph_capture_sizes"] == [1, 2, 4, 8, 16]
    assert "max_cudagraph_capture_size" not in engine["given"]


def test_one_decode_step_is_not_timed(tmp_path: Path) -> None:
    short = {**BATCHES, "workload": {**BATCHES["workload"], "batch_size": 1, "output_length": 2}}
    assert calibrate(tmp_path, short) == 0
    assert {step["name"] for run in written(tmp_path)["runs"] for step in run["passes"]} == {"prefill"}


def test_records_are_compared_with_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(tmp_path, BATCHES, STREAM, options=("--quick",)) == 0
    path = tmp_path / "out" / "runs.json"
    capsys.readouterr()
    assert main(["calibrate", "compare", str(path), "--platform", "h100-1gpu-vm"]) == 0
    shown = capsys.readouterr().out
    file = compare_file(path, platform="h100-1gpu-vm")
    assert [run.reason for run in file.runs] == [""] * 4
    batch, stream = file.runs[1], file.runs[2]
    assert [one.name for one in batch.passes] == ["prefill", "decode"]
    names = [f"{kind} {part}" for kind in ("ttft", "tpot") for part in ("mean", "p50", "p90", "p99")]
    assert [one.name for one in stream.passes] == names
    for one in (*batch.passes, *stream.passes):
        assert one.measured
        assert one.predicted
        assert one.interval
        assert one.interval[0] <= one.predicted <= one.interval[1]
    measured, predicted = batch.kv_blocks or (0, 0)
    assert measured == 20_000
    assert predicted
    assert f"KV blocks of batches, batch_size 1: 20,000 (predicted {predicted:,}" in shown
    assert shown.count("KV blocks") == 1
    assert "ttft p99" in shown


def test_what_fails_is_recorded_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = BATCHES["workload"]
    unlucky = {**BATCHES, "name": "unlucky", "workload": {**work, "prompt_length": [666, 60_000]}}
    large = {**BATCHES, "name": "large", "workload": {**work, "batch_size": 9000}}
    other = {**BATCHES, "name": "other", "model": "opt-1.3b"}
    assert calibrate(tmp_path, unlucky, large, other, BATCHES, options=("--case-time", "5", "--quick")) == 1
    data = written(tmp_path)
    assert [run["name"] for run in data["runs"]] == ["batches, batch_size 1", "batches, batch_size 4"]
    reasons = {one["name"].removeprefix("unlucky, "): one["error"] for one in data["failed"]}
    assert reasons["batch_size 1, prompt_length 666"] == "ValueError: an unlucky prompt"
    assert reasons["batch_size 1, prompt_length 60000"] == "stopped after 5 s"
    assert reasons["large"].startswith(
        "the batch needs 45,000 blocks of the cache, and the engine has 20,000"
    )
    assert reasons["other, batch_size 1"] == "RuntimeError: no kernel for this model"
    assert "failed: other, batch_size 4: RuntimeError: no kernel for this model" in capsys.readouterr().err


def test_a_run_that_ended_early_is_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(tmp_path, BATCHES, options=("--quick",)) == 0
    before = written(tmp_path)["runs"]
    (tmp_path / "out" / ".work" / "model").mkdir(parents=True)  # as after a run that was killed
    assert calibrate(tmp_path, BATCHES, STREAM, options=("--quick", "--resume")) == 0
    after = written(tmp_path)
    assert [run["name"] for run in after["runs"]][:2] == [run["name"] for run in before]
    assert after["runs"][:2] == before
    assert len(after["runs"]) == 4
    assert len(after["probes"]) == 4
    assert len(started(tmp_path)) == 2
    capsys.readouterr()
    changed = {**BATCHES, "workload": {**BATCHES["workload"], "output_length": 13}}
    assert calibrate(tmp_path, changed, options=("--resume",)) == 2
    assert "was recorded with another workload; record into a new folder" in capsys.readouterr().err
    assert calibrate(tmp_path, BATCHES, options=("--resume",)) == 2
    assert "which RUNS has not; name the same files" in capsys.readouterr().err
    assert written(tmp_path) == after
    (tmp_path / "out" / "runs.json").write_text("{}")
    assert calibrate(tmp_path, BATCHES, options=("--resume",)) == 2
    assert "not a record of" in capsys.readouterr().err
    assert calibrate(tmp_path, BATCHES) == 2
    assert "is not an empty folder" in capsys.readouterr().err


def test_without_vllm_one_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "missing_packages", lambda names: tuple(n for n in names if n == "vllm"))
    assert calibrate(tmp_path, BATCHES) == 2
    assert "vllm: not installed; pip install vllm (docs/CALIBRATION.md)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": {"weights": "cpu"}}, "deepspeed is not what vLLM runs"),
        ({"strategy": {**SERVED, "data_parallel_size": 2}}, "data_parallel_size: one replica runs"),
        (
            {"model": {"name": "llama-3.1-8b", "quantization": "nf4"}},
            '"nf4" cannot be run with random weights',
        ),
        ({"stream": {**STREAM["stream"], "scheduler": "static"}}, "vLLM has no static batches"),
        ({"workload": {**BATCHES["workload"], "batch_size": [1, 0]}}, "must be at least 1"),
        (
            {"strategy": {**SERVED, "kv_blocks": 19}},
            "strategy.kv_blocks: 19 blocks of 16 tokens are fewer than the 20 that 4 sequences with",
        ),
        (
            {"stream": {**STREAM["stream"], "kv_blocks": 4}},
            "stream.kv_blocks: 4 blocks of 16 tokens are fewer than the 6 that 1 sequence with",
        ),
    ],
)
def test_what_vllm_does_not_do_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(tmp_path, {**BATCHES, **changes}) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_each_engine_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = {key: value for key, value in BATCHES["workload"].items() if key != "kind"}
    limits = {"tensor_parallel_size": 4, "kv_blocks": 3000, "max_cudagraph_capture_size": 64}
    divided = {**BATCHES, "workload": work, "strategy": {**SERVED, **limits}}
    assert calibrate(tmp_path, divided, STREAM, options=("--dry-run",)) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  engine of llama-3.1-8b, vllm, 4 GPUs, 3,000 KV blocks, CUDA graphs up to 64 tokens",
        "    batches, batch_size 1: 1 sequence, 64 tokens in, 12 out",
        "    batches, batch_size 4: 4 sequences, 64 tokens in, 12 out",
        "  engine of llama-3.1-8b, vllm, 1 GPU",
        "    stream, request_rate 400: 20 requests",
        "    stream, request_rate 800: 20 requests",
    ]


def test_offloaded_and_quantized_weights_are_options_of_the_engine(tmp_path: Path) -> None:
    offloaded = {**BATCHES, "name": "in place", "strategy": {"kind": "vllm", "cpu_offload_gb": 6}}
    packed = {**BATCHES, "name": "packed", "model": {"name": "llama-3.1-8b", "quantization": "int4-g128"}}
    few = {**STREAM, "name": "few", "stream": {**STREAM["stream"], "kv_blocks": 400}}
    assert calibrate(tmp_path, offloaded, packed, few, options=("--quick",)) == 0
    in_place, int4, scarce = started(tmp_path)
    assert in_place["given"]["cpu_offload_gb"] == 6
    assert in_place["environment"]["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert in_place["given"]["cudagraph_capture_sizes"][-1] == 256
    groups = int4["config"]["quantization_config"]["config_groups"]
    assert groups["group_0"]["weights"]["group_size"] == 128
    assert scarce["given"]["num_gpu_blocks_override"] == 400
    assert scarce["given"]["max_model_len"] == 400 * 16
    runs = read_records(tmp_path / "out" / "runs.json").runs
    assert [run.offload for run in runs] == ["cpu", "cpu", "none", "none", "none", "none"]


def test_turns_of_conversations_follow_the_answers(tmp_path: Path) -> None:
    turns = {"turns": {"kind": "fixed", "tokens": 2}, "think_time": "10 ms"}
    stream = {**STREAM["stream"], "num_prompts": 6, "conversations": turns}
    stream["arrivals"] = {"kind": "closed", "users": 2}
    assert calibrate(tmp_path, {**STREAM, "stream": stream}, options=("--quick",)) == 0
    (run,) = written(tmp_path)["runs"]
    requests = run["requests"]
    assert requests["after"] == [-1, 0, -1, 2, -2, 4]
    assert requests["arrived"][4] == pytest.approx(
        min(requests["last"][1], requests["last"][3]) + requests["arrival"][4], abs=1e-5
    )
    for row, before in enumerate(requests["after"]):
        if before >= 0:
            assert requests["arrived"][row] == pytest.approx(
                requests["last"][before] + requests["arrival"][row], abs=1e-5
            )
    (compared,) = compare_file(tmp_path / "out" / "runs.json", platform="h100-1gpu-vm").runs
    assert compared.reason == ""


def test_routers_of_random_weights_are_predicted_to_choose_evenly(tmp_path: Path) -> None:
    mixture = {**BATCHES, "model": "qwen3-30b-a3b"}
    stated = {**mixture, "name": "stated", "model": {"name": "qwen3-30b-a3b", "routing": {"zipf": 1.5}}}
    assert calibrate(tmp_path, mixture, stated, BATCHES | {"name": "dense"}, options=("--quick",)) == 0
    models = {run["name"].partition(",")[0]: run["model"] for run in written(tmp_path)["runs"]}
    assert models["batches"]["routing"] == "uniform"
    assert models["stated"]["routing"] == {"zipf": 1.5}
    assert "routing" not in models["dense"]
