"""``simoffload calibrate compare``: runs and predictions, stream by stream and layer by layer."""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from simoffload.cli.console import Console
from simoffload.documents import Document
from simoffload.errors import InputError
from simoffload.planning.confidence import confidence
from simoffload.scenario import resolve
from simoffload.simulation import simulate
from simoffload_calibrate import commands
from simoffload_calibrate.compare import (
    ComparedPass,
    ComparedRun,
    compare_file,
    comparison_text,
    errors,
    to_dict,
)
from tests.calibration import recorded
from tests.calibration.recorded import MODEL, WORK, ds_config, inference, record, trace, training
from tests.cli.conftest import Answer

write = partial(recorded.write, gpus=8)
"""A file of runs of a machine with eight GPUs, which without a profile is a DGX."""


def one(path: Path, **options: Any) -> ComparedRun:
    """The only run of a file."""
    file = compare_file(path, **options)
    assert len(file.runs) == 1
    return file.runs[0]


def simulated(**strategy: Any) -> Any:
    """Return the same small run as a scenario in which every step is simulated."""
    data = {"name": "small", "model": MODEL, "platform": "dgx-h200", "workload": WORK,
            "engine": {"decode_extrapolation": "off"},
            "strategy": {"ds_config": ds_config(), **strategy}}  # fmt: skip
    return simulate(resolve(Document("", data)))


def test_predictions_are_those_of_the_simulator(tmp_path: Path) -> None:
    compared = one(write(tmp_path, inference()))
    result = simulated()
    assert compared.reason == ""
    metrics = {"first pass": "first_pass_s", "prefill": "ttft_s", "decode": "tpot_s"}
    known = confidence(result)
    assert {found.name: (found.predicted, found.interval) for found in compared.passes} == {
        name: (
            pytest.approx(result.metrics()[metric], rel=1e-9),
            None if name == "first pass" else pytest.approx(known.interval(metric), rel=1e-9),
        )
        for name, metric in metrics.items()
    }
    decode = compared.find("decode")
    assert decode is not None
    assert decode.measured == 0.021
    assert decode.error == pytest.approx(result.tpot_s / 0.021 - 1)


def test_the_first_pass_may_be_left_out(tmp_path: Path) -> None:
    compared = one(write(tmp_path, inference()), first=False)
    assert [found.name for found in compared.passes] == ["prefill", "decode"]


def test_errors_are_averaged_by_size_and_the_worst_keeps_its_sign() -> None:
    runs = [timed(1.0, 0.9), timed(2.0, 2.1), timed(1.0, None), timed(3.0, 3.0, name="step")]
    assert errors(runs, "decode") == (2, pytest.approx(0.075), pytest.approx(-0.1), None, None)
    assert errors(runs, "decode", naive=True) == (3, 0.5, -0.5, None, None)
    assert errors(runs, "prefill") is None
    both = errors(runs, "decode", "step")
    assert both is not None
    assert (both.runs, both.mean) == pytest.approx((3, 0.05))


def timed(
    measured: float,
    predicted: float | None,
    interval: tuple[float, float] | None = None,
    name: str = "decode",
) -> ComparedRun:
    """Return a run with one pass [s], whose naive prediction is half of the measured time."""
    found = ComparedPass(name, measured, predicted, 0.5 * measured, interval)
    return ComparedRun(None, (found,), "", (), (), None)  # type: ignore[arg-type]


def test_measured_times_are_counted_inside_the_interval() -> None:
    """A bound belongs to the interval; the width counts on both sides, relative to the prediction."""
    runs = [timed(1.0, 1.0, (0.9, 1.1)), timed(2.0, 4.0, (2.0, 8.0)), timed(1.0, 1.2, (1.1, 1.3))]
    assert [run.passes[0].inside for run in runs] == [True, True, False]
    found = errors(runs, "decode")
    assert found is not None
    assert (found.inside, found.half_width) == (2, pytest.approx(0.1))
    assert timed(1.0, None).passes[0].inside is None
    assert timed(1.0, None).passes[0].half_width is None


# -- the platform -------------------------------------------------------------------------------


@pytest.fixture
def own_platform(repository: Path) -> Callable[[Path], None]:
    """Return a function that writes a platform file with shipped devices into a folder."""

    def put(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        text = (repository / "hardware_profiles" / "platform" / "dgx-a100.yaml").read_text()
        (folder / "platform.yaml").write_text(text.replace("id: dgx-a100\n", "id: mine\n"))

    return put


@pytest.mark.parametrize("place", [".", "profile"])
def test_the_profile_beside_the_runs_is_used(
    tmp_path: Path, own_platform: Callable[[Path], None], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, inference())
    by_gpu = one(path).passes
    own_platform(tmp_path / place)
    file = compare_file(path)
    assert file.platform.endswith("platform.yaml")
    assert file.remarks == ()
    assert file.runs[0].passes != by_gpu
    assert compare_file(path, own_profile=False).runs[0].passes == by_gpu
    assert one(path, platform="dgx-h200").passes == by_gpu
    monkeypatch.chdir(tmp_path)
    assert compare_file(Path("runs.json")).runs[0].passes == file.runs[0].passes


@pytest.mark.parametrize(
    ("gpu", "gpus", "platform"),
    [
        ("NVIDIA H200", 8, "dgx-h200"),
        ("NVIDIA H200", 1, "h200-1gpu-vm"),
        ("NVIDIA H100 80GB HBM3", 1, "h100-1gpu-vm"),
        ("Tesla V100-SXM3-32GB", 1, "dgx-2"),
    ],
)
def test_the_shipped_machine_like_that_of_the_runs_is_named(
    tmp_path: Path, gpu: str, gpus: int, platform: str
) -> None:
    """A machine with one GPU is rented: a DGX has twice its rate of CPU Adam."""
    file = compare_file(write(tmp_path, inference(), gpu=gpu, gpus=gpus))
    assert file.platform == platform
    assert file.remarks == (f"predicted with the shipped {platform}, not with a profile of this machine",)


def test_numbers_of_the_platform_can_be_changed(tmp_path: Path) -> None:
    path = write(tmp_path, inference(), gpus=1)
    slow = {"host/h200-1gpu-vm-host": {"deepspeed": {"hook": "10 ms"}}}
    for before, after in zip(one(path).passes, one(path, profiles=slow).passes, strict=True):
        assert (after.predicted or 0.0) > 2 * (before.predicted or 0.0) > 0.0


@pytest.mark.parametrize(
    ("gpu", "message"), [("Some GPU 9000", 'has the GPU "Some GPU 9000"'), ("", "no GPU")]
)
def test_without_a_platform_there_is_nothing_to_predict_with(tmp_path: Path, gpu: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"machine\.gpu: .*{message}.*; name a platform with --platform"):
        compare_file(write(tmp_path, inference(), gpu=gpu))


@pytest.mark.parametrize(
    ("date", "cores", "evidence"),
    [("2026-11-22", 16, "own"), ("2026-11-23", 16, "same kind"), ("2026-11-22", 32, "same kind")],
)
def test_a_named_profile_is_the_machines_own_if_measured_on_that_day(
    date: str, cores: int, evidence: str, tmp_path: Path
) -> None:
    """Any other is taken for that of another machine of the kind; one beside the runs is their own."""
    path = write(tmp_path / "runs", inference())
    data = json.loads(path.read_text())
    data |= {"date": date, "machine": data["machine"] | {"cpu": "Intel(R) Xeon(R) Processor", "cores": cores}}
    path.write_text(json.dumps(data))
    measured = Path(__file__).parents[2] / "validation/measured/holdout/h200-o"
    found = one(path, platform=str(measured / "platform.yaml")).find("decode")
    assert found is not None
    assert found.compared is not None
    assert (found.compared.program, found.compared.evidence) == ("zero", evidence)
    for profile in measured.glob("*.yaml"):
        shutil.copy(profile, path.parent)
    beside = one(path).find("decode")
    assert beside is not None
    assert beside.compared is not None
    assert beside.compared.evidence == "own"


def test_an_unknown_platform_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='--platform: there is no platform "nowhere"'):
        compare_file(write(tmp_path, inference()), platform="nowhere")


# -- what cannot be predicted -------------------------------------------------------------------

LARGE = {"name": "opt-66b"}
NVME = ds_config("nvme", offload_param={"buffer_size": 300_000})


@pytest.mark.parametrize(
    ("run", "platform", "message"),
    [
        (inference(ds_config=NVME), None, "its drives are not those of this run; name a platform"),
        (inference(model=LARGE), "rtx-4090-desktop", "does not fit: dram needs"),
        (inference(ranks=9), None, "strategy.ranks: 9 ranks, but the platform has 8 GPUs"),
        (inference(model={"name": "opt-0b"}), None, 'unknown model "opt-0b"'),
        (inference(ds_config={"zero_optimization": {"stage": 2}}), None, "2 does not offload parameters"),
        (
            inference(workload={**WORK, "prompt_length": 0}),
            None,
            "workload.prompt_length: must be at least 1",
        ),
        (
            inference(
                model={**MODEL, "hidden_size": 1024},
                ds_config=ds_config("nvme", offload_param={"buffer_size": 1000}),
            ),
            "dgx-h200",
            "DeepSpeed would stop here: More elements",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_predicted_is_a_row_with_its_reason(
    tmp_path: Path, run: dict[str, Any], platform: str | None, message: str
) -> None:
    path = write(tmp_path, run, inference("next"))
    first, following = compare_file(path, platform=platform).runs
    assert message in first.reason
    assert [found.measured for found in first.passes]
    assert all(found.predicted is None and found.error is None for found in first.passes)
    assert following.reason == ""


def test_a_platform_without_drives_has_no_place_for_weights(
    tmp_path: Path, own_platform: Callable[[Path], None]
) -> None:
    own_platform(tmp_path)
    path = tmp_path / "platform.yaml"
    path.write_text(path.read_text().partition("\ntiers:")[0])
    compared = one(write(tmp_path, inference(ds_config=NVME)))
    assert compared.reason.startswith('platform "mine" has no storage tier; measure one with calibrate micro')


def test_weights_on_storage_go_to_the_platforms_drives(tmp_path: Path) -> None:
    model = {**MODEL, "hidden_size": 1024, "ffn_dim": 4096}
    config = ds_config("nvme", offload_param={"buffer_size": 5_000_000})
    compared = one(
        write(tmp_path, inference(model=model, ds_config=config, traces={"decode 1": _read_trace()})),
        platform="dgx-h200",
    )
    assert compared.reason == ""
    rows = {row.name.strip(): row for row in compared.streams}
    per_layer = 4 * 1024 * 1024 + 2 * 4096 * 1024
    embeddings = 1024 * 1024 * 2 + 514 * 1024
    assert rows["bytes"].simulated == 2 * (2 * per_layer + embeddings)
    assert rows["bytes"].measured == 300.0
    assert rows["wait for reads"].measured == pytest.approx(70e-6)
    assert rows["read"].simulated
    assert rows["read"].simulated > 0


def _read_trace() -> dict[str, Any]:
    rows = [["read", "a", 100, 0.0, 1.0, 4], ["wait read", "", 0, 1.0, 30.0, 4],
            ["read", "b", 200, 0.0, 1.0, 3], ["wait read", "", 0, 1.0, 40.0, 4]]  # fmt: skip
    return {**trace(), "storage": rows}


def test_the_attention_that_ran_is_predicted(tmp_path: Path) -> None:
    work = {**WORK, "batch_size": 64, "prompt_length": 256}
    times = [
        one(write(tmp_path, inference(workload=work, attention=attention)), first=False).find("prefill")
        for attention in ("sdpa", "eager", None)
    ]
    sdpa, eager, default = (found.predicted for found in times if found)
    assert eager > sdpa == default  # type: ignore[operator]
    other = one(write(tmp_path, inference(attention="flash_attention_2")))
    assert other.reason == ""
    assert other.remarks[0].startswith('attention "flash_attention_2" is not modelled')


# -- one step in parts --------------------------------------------------------------------------


def test_the_host_thread_is_split_without_counting_children_twice(tmp_path: Path) -> None:
    activity = {"busy_us": {"copy": 40.0, "move": 3.0}, "count": {"copy": 2, "move": 1}}
    run = inference(traces={"decode 1": trace(), "gpu decode": activity})
    compared = one(write(tmp_path, run))
    rows = {row.name.strip(): row for row in compared.streams}
    assert rows["fetch"].measured == pytest.approx(2750e-6)
    assert rows["release"].measured == pytest.approx(520e-6)
    assert rows["host thread"].measured == pytest.approx(20_000e-6)
    assert rows["launch"].measured == pytest.approx((20_000 - 2750 - 520) * 1e-6)
    assert rows["copy"].measured == pytest.approx(40e-6)
    assert rows["move"].measured == pytest.approx(3e-6)
    assert rows["compute"].measured == 0.0
    assert "gather" not in rows


def test_the_simulated_host_thread_works_or_waits_all_the_time(tmp_path: Path) -> None:
    compared = one(write(tmp_path, inference()))
    rows = {row.name.strip(): row for row in compared.streams}
    decode = compared.find("decode")
    assert decode is not None
    assert decode.predicted is not None
    assert rows["busy"].simulated + rows["waits"].simulated == rows["host thread"].simulated  # type: ignore[operator]
    assert rows["host thread"].simulated == pytest.approx(decode.predicted, rel=0.02)
    assert rows["host thread"].measured is None
    assert rows["copy"].simulated


def test_layers_begin_where_the_trace_says_scaled_to_the_untraced_step(tmp_path: Path) -> None:
    layers = one(write(tmp_path, inference(traces={"decode 1": trace()}))).layers
    assert layers is not None
    assert layers.step_s == 0.021
    assert layers.measured == pytest.approx((0.021 * 1000 / 20_000, 0.021 * 9000 / 20_000))
    first, second = layers.simulated
    assert 0 < first < second < layers.simulated_step_s
    assert layers.deviations == pytest.approx(
        [(first - layers.measured[0]) / 0.021, (second - layers.measured[1]) / 0.021]
    )
    assert layers.largest == max(map(abs, layers.deviations))


@pytest.mark.parametrize("name", ["opt-1.3b", "bloom-3b", "llama-3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("bucket", [0, 50_000_000])
def test_simulated_layers_are_found_in_every_family(tmp_path: Path, name: str, bucket: int) -> None:
    from simoffload.models import load_model

    count = load_model(name).num_hidden_layers
    spread = {"module": [f"model.layers.{n}" for n in range(count)]}
    for column in ("fetch", "fetched", "launched", "released"):
        spread[column] = [float(n) for n in range(count)]  # type: ignore[misc]
    run = inference(
        model={"name": name},
        ds_config=ds_config(stage3_prefetch_bucket_size=bucket),
        traces={"decode 1": {"seconds": 1.0, "modules": spread}},
    )
    compared = one(write(tmp_path, run), first=False)
    layers = compared.layers
    assert layers is not None, compared.reason
    assert len(layers.simulated) == count
    assert all(earlier < later for earlier, later in pairwise(layers.simulated))
    # No layer takes a large part of the step: none was missed, none found twice.
    assert layers.simulated[-1] > 0.5 * layers.simulated_step_s


def test_a_trace_of_other_layers_is_not_compared(tmp_path: Path) -> None:
    short = trace()
    for column in short["modules"].values():
        del column[4:]
    assert one(write(tmp_path, inference(traces={"decode 1": short}))).layers is None


# -- the command --------------------------------------------------------------------------------

Compare = Callable[..., Answer]


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Run the command in a folder that contains ``runs.json``."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, inference(traces={"decode 1": trace()}), training(), inference("two", ranks=2))

    def run(*message: str) -> Answer:
        parser = argparse.ArgumentParser(prog="simoffload")
        commands.add(parser)
        arguments = parser.parse_args(["compare", *message])
        console = Console(as_json=arguments.json)
        try:
            status = int(arguments.command(arguments, console))
        except InputError as error:
            console.fail(error.problems)
            status = 2
        return Answer(status, *capsys.readouterr())

    return run


def test_the_table_has_a_line_for_every_pass(compare: Compare) -> None:
    answer = compare("runs.json")
    assert answer.status == 0
    lines = answer.out.splitlines()
    assert lines[0] == "runs.json, predicted with dgx-h200"
    table = [line.split() for line in lines[3:14]]
    assert table[0][:5] == ["small", "1", "cpu", "first", "pass"]
    assert table[1][:2] == ["prefill", "30.0"]
    low, to, high, inside = table[1][4:8]
    assert (float(low) < 30 < float(high), to) == (inside == "yes", "to")
    assert table[2][:2] == ["decode", "21.0"]
    assert table[3][:6] == ["trained", "1", "parameters", "cpu", "forward", "4000.0"]
    assert [row[0] for row in table[4:7]] == ["backward", "optimizer", "step"]
    assert lines[-1].startswith("3 runs. decode (2): error ")
    assert " inside the 80 % interval; naive " in lines[-1]
    assert ". step (1): error " in lines[-1]
    assert "layer 0 begins" not in answer.out


def test_streams_on_request(compare: Compare) -> None:
    out = compare("runs.json", "--streams").out
    assert "small, 1 rank: one decode step on rank 0, ms" in out
    assert next(line.split() for line in out.splitlines() if line.startswith("  layer 0"))[3] == "1.1"
    assert "of the step too early or too late (layer" in out


def test_the_document_is_plain_data(compare: Compare) -> None:
    answer = compare("runs.json", "--json")
    data = json.loads(answer.out)
    assert data["schema"] == "simoffload/calibrate-compare/1"
    assert data["summary"]["runs"] == 3
    summary = data["summary"]["decode"]
    assert summary["predicted"].keys() == {"runs", "mean", "worst", "inside", "half_width"}
    assert summary["naive"].keys() == {"runs", "mean", "worst"}
    assert (summary["predicted"]["runs"], data["summary"]["step"]["predicted"]["runs"]) == (2, 1)
    small, trained, two = data["files"][0]["runs"]
    first_pass, *later = small["passes"]
    assert (first_pass["interval"], first_pass["inside"]) == (None, None), "its error is not known"
    for found in later:
        low, high = found["interval"]
        assert found["inside"] is (low <= found["measured"] <= high)
    assert [found["name"] for found in small["passes"]] == ["first pass", "prefill", "decode"]
    assert small["reason"] is None
    assert small["layers"]["largest_deviation"] > 0
    assert [found["name"] for found in trained["passes"]] == ["forward", "backward", "optimizer", "step"]
    assert all(found["predicted"] and found["naive"] for found in trained["passes"])
    assert two["layers"] is None
    assert {row["name"] for row in two["streams"]} >= {"host thread", "copy", "gather", "compute"}


def test_every_bad_file_is_told_and_nothing_is_printed(compare: Compare, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    answer = compare("runs.json", "bad.json", "none.json")
    assert answer.status == 2
    assert answer.out == ""
    assert answer.err.splitlines()[0].startswith("error: bad.json:1:2: not valid JSON")
    assert answer.err.splitlines()[1] == "error: none.json: no such file"


def test_names_from_files_cannot_move_the_cursor(tmp_path: Path) -> None:
    run = inference("evil\x1b[2J", ds_config={"zero_optimization": {"stage": 2}})
    text = comparison_text([compare_file(write(tmp_path, run))], streams=True)
    assert "\x1b" not in text
    assert "evil\\x1b[2J: no prediction" in text


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="runs: none of its runs was completed"):
        compare_file(write(tmp_path))


def test_numbers_are_finite(tmp_path: Path) -> None:
    data = to_dict([compare_file(write(tmp_path, *record(inference())["runs"]))])
    assert math.isfinite(data["summary"]["decode"]["predicted"]["mean"])
    assert json.dumps(data, allow_nan=False)
    shutil.rmtree(tmp_path)
