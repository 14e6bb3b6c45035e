"""A microbenchmark from outside, declared in this file alone, is planned, measured, recorded and fitted."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from simoffload.cli import main
from simoffload.hardware import load_platform
from simoffload_calibrate.micro import benchmarks
from simoffload_calibrate.micro.benchmarks import Fits, Microbenchmark, register
from simoffload_calibrate.micro.fit_parts import Fitted, rate_text
from simoffload_calibrate.micro.profiles import Base, Measured

SIZE = 1 << 20


def measure(_job: Any) -> dict[str, Any]:
    """What runs in the child process; its times are made up, so that they are known."""
    return {
        "bytes": SIZE,
        "check": zlib.crc32(bytes(SIZE)),
        "pid": os.getpid(),
        "seconds": [1e-3, 1e-3, 4e-3],
    }


class Checksum(Microbenchmark):
    """The check of a tensor file by one thread."""

    name = "checksum"
    runs = "tests.calibration.micro.test_outside:measure"
    seconds, quick, rounds, needs_gpu = 3.0, 1.0, (1, 2), False
    gives = ("host.checksum",)

    def fit(self, measured: Measured) -> Fits:
        row = measured.sections.get(self.name)
        if row is None:
            return {}
        fitted = Fitted(rate_text(row["bytes"] / row["seconds"]), "zlib.crc32 of 1 MiB", 1)
        return {"host.checksum": fitted}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "_registered", {})
    register(Checksum)


def test_it_is_measured_recorded_fitted_and_a_number_of_the_profile(
    players: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{players}:{Path(__file__).parents[3]}")
    out = players / "out"
    command = ["calibrate", "micro", "-o", str(out), "--only", "checksum", "--from", "dgx-h200"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "1 section to measure:" in shown.err
    assert "round 2: checksum (2 of 2)" in shown.err
    assert "measured: checksum" in shown.out
    raw = json.loads((out / "micro.json").read_text())
    assert [(one["section"], one["round"]) for one in raw["rounds"]] == [("checksum", 1), ("checksum", 2)]
    assert raw["rounds"][0]["found"]["pid"] != os.getpid()
    assert raw["sections"]["checksum"]["seconds"] == pytest.approx(1e-3)
    assert raw["sections"]["checksum"]["seconds_spread"] == pytest.approx([1e-3, 4e-3])
    statement = yaml.safe_load((out / "host.yaml").read_text())["checksum"]
    assert statement["value"] == rate_text(SIZE / 1e-3)
    assert statement["origin"] == "measured"
    assert statement["source"].startswith("calibrate micro: zlib.crc32 of 1 MiB; 1 point; ")
    host = load_platform(out / "platform.yaml").host
    assert host.checksum is not None
    assert host.checksum.value == pytest.approx(SIZE / 1e-3, rel=1e-3)


def test_a_run_that_ended_without_it_says_what_is_missing() -> None:
    missing = benchmarks.missing_sections({"unfinished": ["checksum"]})
    early = "checksum was not measured because the run ended early"
    assert missing == (f"{early}: checksum of host.yaml come from the other platform",)


def test_names_are_unique() -> None:
    register(Checksum)
    other = type("Other", (Microbenchmark,), {"name": "checksum"})
    with pytest.raises(ValueError, match="the microbenchmark checksum is known already, as Checksum"):
        register(other)
    assert benchmarks.microbenchmarks()[-1].name == "checksum"


def test_fits_give_what_they_declare() -> None:
    """Every key of a fitted value is one that some benchmark gives, or a fact that needs none."""
    from tests.calibration.micro.machine import record

    raw = record() | {"probes": []}
    measured = Measured(raw, Base.of(load_platform("dgx-h200")), "m", lambda _: None, lambda _: None)
    facts = set(measured.fitted)
    for one in benchmarks.microbenchmarks():
        given = one.fit(measured)
        declared = {key for other in benchmarks.microbenchmarks() for key in other.gives}
        allowed = (*declared, "host.host_factor")
        assert all(key.startswith(allowed) for key in given), one.name
        measured.fitted |= given
    assert len(measured.fitted) > len(facts) + 20
