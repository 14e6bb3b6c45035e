"""``simoffload calibrate micro``: options, refusals, and profiles from an earlier record."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from simoffload import extending
from simoffload.hardware import load_platform
from simoffload_calibrate.micro import profiles, session
from simoffload_calibrate.micro.benchmarks import MeasurementRequest
from tests.calibration.micro.machine import record

if TYPE_CHECKING:
    from tests.cli.conftest import Answer, Program

    Micro = Callable[..., Answer]


@pytest.fixture
def micro(program: Program) -> Micro:
    """The command, in a folder that holds ``micro.json``."""
    Path("micro.json").write_text(json.dumps(record()))
    return lambda *argv: program("calibrate", "micro", *argv)


def held(folder: str) -> list[str]:
    """Names in a folder."""
    return sorted(entry.name for entry in Path(folder).iterdir())


def test_profiles_from_a_record(micro: Micro) -> None:
    answer = micro("--from-json", "micro.json", "-o", "out", "--id", "mine")
    assert answer.status == 0, answer.err
    assert answer.out.endswith("use it as platform: out/platform.yaml\n")
    assert held("out") == [
        "accelerator.yaml",
        "drive.yaml",
        "host.yaml",
        "pcie.yaml",
        "platform.yaml",
    ]
    assert load_platform(Path("out/platform.yaml")).profile.id == "mine"


def test_one_json_document(micro: Micro) -> None:
    data = json.loads(micro("--from-json", "micro.json", "-o", "out", "--json").out)
    assert data["schema"] == "simoffload/calibrate-micro/1"
    assert data["files"] == ["platform.yaml", "host.yaml", "accelerator.yaml", "pcie.yaml", "drive.yaml"]
    assert "hooks" in data["measured"]


def test_measuring_writes_the_record_and_profiles(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[MeasurementRequest] = []

    def measure(request: MeasurementRequest, *, progress: Callable[[str], None]) -> dict[str, object]:
        progress("looking")
        asked.append(request)
        return record() | {"skipped": {"storage": "no folder"}}

    monkeypatch.setattr(session, "measure", measure)
    answer = micro("-o", "out", "--gpus", "2", "--skip", "storage", "--quick")
    assert answer.status == 0
    assert answer.err.startswith(
        "Measuring copies, kernels, dram, memory_reads, hbm, matmul, hooks, eager, cpu_adam, page_faults, "
        "collectives, attention, ggml;"
    )
    assert "warning: storage skipped: no folder\n" in answer.err
    assert asked[0].gpus == 2
    assert asked[0].quick
    assert "storage" not in asked[0].sections
    assert json.loads(Path("out/micro.json").read_text())["schema"] == "simoffload/micro/1"
    assert Path("out/host.yaml").is_file()


def test_profiles_of_a_run_that_ended_early_say_what_they_lack(micro: Micro) -> None:
    raw = record()
    for section in ("hooks", "storage", "copies_together", "collectives"):
        del raw["sections"][section]
    raw["unfinished"] = ["attention", "storage", "copies_together/4", "copies_subsets/4", "hooks"]
    raw["rounds"] = [{"section": "copies_subsets/4"}]
    Path("part.json").write_text(json.dumps(raw))
    answer = micro("--from-json", "part.json", "-o", "out")
    assert answer.status == 0, answer.err
    early, other = "was not measured because the run ended early", "come from the other platform"
    traffic = "stream_fraction, from_gpu_traffic and pageable_traffic of host.yaml"
    shared = "platform.yaml does not show which GPUs share a switch or a socket"
    assert answer.err.splitlines() == [
        f"warning: attention {early}: fused_attention and eager_attention of accelerator.yaml {other}",
        f"warning: storage {early}: no drive.yaml is written",
        f"warning: copies_together/4 {early}: {traffic} {other}",
        f"warning: copies_subsets/4 {early.replace('measured', 'completed')}: {shared}",
        f"warning: hooks {early}: deepspeed and training of host.yaml {other}",
    ]
    assert held("out") == ["accelerator.yaml", "host.yaml", "pcie.yaml", "platform.yaml"]
    pcie = [one for one in load_platform(Path("out/platform.yaml")).inputs if one.key == "host_to_device"]
    assert "calibrate micro" in pcie[0].source
    raw["unfinished"] = 3
    Path("part.json").write_text(json.dumps(raw))
    assert micro("--from-json", "part.json", "-o", "again").err.startswith("error: part.json: unfinished: ")


def test_without_a_gpu_the_record_stays_alone(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = record(gpus=1)
    raw["machine"]["gpu"] = None
    monkeypatch.setattr(session, "measure", lambda *_, **__: raw)
    answer = micro("-o", "out")
    assert answer.status == 0
    assert "warning: no GPU was found, so no profiles" in answer.err
    assert held("out") == ["micro.json"]
    assert micro("-o", "named", "--from", "dgx-a100").status == 0
    assert load_platform(Path("named/platform.yaml")).profile.gpus == ("cpu",)


def test_how_noisy_the_host_was_is_reported(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = {"probes": 24, "median": 1.04, "worst": 1.312, "repeated": 2, "stayed_noisy": ["hooks_training"]}
    monkeypatch.setattr(session, "measure", lambda *_, **__: record() | {"noise": noise})
    answer = micro("-o", "out")
    assert (
        "host: the median of 24 probes took 1.04 x, the slowest 1.31 x the time of the fastest; "
        "2 sections measured again\n"
    ) in answer.out
    assert "host thread: 1.50 x the reference host's time (P10 1.41, P90 1.59)\n" in answer.out
    assert "warning: the speed of the host changed while hooks_training were measured" in answer.err
    assert json.loads(micro("-o", "again", "--json").out)["noise"] == noise


def test_without_a_probe_there_is_no_noise_to_report(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    """No section remains, for example with ``--only collectives`` on one GPU."""
    raw = record() | {"noise": {"stayed_noisy": []}}
    monkeypatch.setattr(session, "measure", lambda *_, **__: raw)
    answer = micro("-o", "out")
    assert answer.status == 0, answer.err
    assert "host: " not in answer.out


def test_a_resumed_run_takes_the_record_of_the_folder(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[MeasurementRequest] = []

    def measure(request: MeasurementRequest, *, progress: Callable[[str], None]) -> dict[str, object]:
        progress("looking")
        asked.append(request)
        return record()

    monkeypatch.setattr(session, "measure", measure)
    assert micro("-o", "out", "--time", "90").status == 0
    answer = micro("-o", "out", "--resume")
    assert answer.status == 0, answer.err
    assert [one.seconds for one in asked] == [90.0, None]
    assert asked[0].resumed is None
    assert asked[1].resumed == record()
    assert "platform.yaml" in held("out")


def test_an_unknown_gpu_keeps_the_record(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = record()
    raw["machine"]["gpu"]["name"] = "Imagined 1"
    monkeypatch.setattr(session, "measure", lambda *_, **__: raw)
    answer = micro("-o", "out")
    assert answer.status == 2
    assert '--from: missing: no shipped platform has the GPU "Imagined 1"; name one of ' in answer.err
    assert "out/micro.json is kept for --from-json" in answer.err
    assert held("out") == ["micro.json"]


@pytest.mark.parametrize("late", [False, True], ids=["while measuring", "while profiles are made"])
def test_a_stop_leaves_profiles_of_what_was_measured(
    micro: Micro, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    raw = record()
    del raw["sections"]["hooks"]
    raw["unfinished"] = ["hooks"]
    make = profiles.checked_profiles

    def measure(request: MeasurementRequest, **_: object) -> dict[str, object]:
        assert request.record is not None
        request.record.write_text(json.dumps(raw))
        if not late:
            raise KeyboardInterrupt
        return raw

    def stopped(*_: object, **__: object) -> None:
        monkeypatch.setattr(profiles, "checked_profiles", make)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "measure", measure)
    if late:
        monkeypatch.setattr(profiles, "checked_profiles", stopped)
    answer = micro("-o", "out", "--id", "mine")
    assert (answer.status, answer.err.splitlines()[-1]) == (130, "interrupted")
    assert "out: platform.yaml, host.yaml, accelerator.yaml, pcie.yaml, drive.yaml" in answer.err
    assert load_platform(Path("out/platform.yaml")).profile.id == "mine"


def test_a_second_stop_leaves_the_record(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(request: MeasurementRequest, **_: object) -> None:
        assert request.record is not None
        request.record.write_text(json.dumps(record()))
        raise KeyboardInterrupt

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "measure", measure)
    monkeypatch.setattr(profiles, "checked_profiles", stopped)
    answer = micro("-o", "out")
    assert (answer.status, answer.err.splitlines()[-1]) == (130, "interrupted")
    assert "--from-json" in answer.err
    assert held("out") == ["micro.json"]


def test_a_stop_says_why_there_are_no_profiles(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = record()
    raw["machine"]["gpu"]["name"] = "Imagined 1"

    def measure(request: MeasurementRequest, **_: object) -> None:
        assert request.record is not None
        request.record.write_text(json.dumps(raw))
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "measure", measure)
    answer = micro("-o", "out")
    assert answer.status == 130
    assert 'warning: --from: missing: no shipped platform has the GPU "Imagined 1"' in answer.err
    assert held("out") == ["micro.json"]


def test_an_interrupt_writes_nothing(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "measure", measure)
    answer = micro("-o", "out")
    assert (answer.status, answer.err.splitlines()[-1]) == (130, "interrupted")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("-o", "full"), "full: is not empty; name a new folder"),
        (("-o", "micro.json"), "micro.json: is not a plain folder; name another folder"),
        (("-o", "no/out"), "no/out: its parent folder does not exist; create it first"),
        (("-o", "out", "--only", "storage"), "--storage: is missing: name the folder to measure"),
        (("-o", "out", "--only", "dram", "--skip", "dram"), "--skip: skips all sections"),
        (("-o", "out", "--from", "dgx-h20"), '--from: there is no platform "dgx-h20"'),
        (("-o", "out", "--id", "Not An Id"), "--id: "),
        (
            ("-o", "out", "--from-json", "micro.json", "--gpus", "2"),
            "--gpus: cannot be combined with --from-json",
        ),
        (
            ("-o", "out", "--from-json", "micro.json", "--storage-size", "1 GiB"),
            "--storage-size: cannot be combined",
        ),
        (
            ("-o", "out", "--from-json", "micro.json", "--resume"),
            "--resume: out has no micro.json",
        ),
        (
            ("-o", "out", "--from-json", "micro.json", "--time", "5"),
            "--time: cannot be combined with --from-json",
        ),
        (("-o", "full", "--resume"), "--resume: full has no micro.json"),
        (("-o", "out", "--from-json", "other.json"), "other.json: not a record"),
        (("-o", "out", "--from-json", "none.json"), "none.json: "),
    ],
)
def test_options_that_are_refused(micro: Micro, argv: tuple[str, ...], message: str) -> None:
    Path("full").mkdir()
    Path("full/file").write_text("precious")
    Path("other.json").write_text("{}")
    answer = micro(*argv)
    assert answer.status == 2
    assert answer.err.startswith(f"error: {message}"), answer.err
    assert answer.out == ""
    assert not Path("out").exists()
    assert held("full") == ["file"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("-o", "out", "--only", "hook"), '"hook" is not a section; did you mean "hooks"?'),
        (("-o", "out", "--skip", ""), '"" has an empty entry'),
        (("-o", "out", "--gpus", "0"), '"0" is not a number of GPUs from 1 to 64'),
        (("-o", "out", "--storage-size", "2"), "unit"),
        (("-o", "out", "--time", "0"), '"0" is not '),
        ((), "required: -o/--output-dir"),
    ],
)
def test_words_that_are_refused(micro: Micro, argv: tuple[str, ...], message: str) -> None:
    answer = micro(*argv)
    assert answer.status == 2
    assert message in answer.err


def test_nothing_heavy_is_imported_here() -> None:
    """The parser needs none of what measures."""
    program = (
        "import sys, simoffload_calibrate.micro.command\n"
        "print([name for name in ('torch', 'numpy', 'simoffload.hardware') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_without_its_package_the_command_says_what_brings_it(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = extending.Found({}, {"calibrate": "No module named 'simoffload_calibrate'"})
    monkeypatch.setattr(extending, "found", lambda: missing)
    answer = program("calibrate", "micro", "-o", "out")
    assert answer.status == 2
    assert '"calibrate" is not one of run, ' in answer.err
    assert "; extensions that cannot be imported here: calibrate (" in answer.err
    assert program("check", "small.yaml", "--json").status == 0


def test_only_calibrate_imports_its_package() -> None:
    code = (
        "import sys, simoffload.cli; simoffload.cli.main(['check', 'ddn/bloom-7b1']); "
        "print([name for name in sys.modules if name.startswith('simoffload_calibrate')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "['simoffload_calibrate']", "its table alone"
