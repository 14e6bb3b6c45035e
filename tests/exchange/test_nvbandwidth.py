"""nvbandwidth's JSON and its matrices."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simoffload_calibrate.importers.benchmark_files import read_nvbandwidth
from tests.exchange.refusals import refusal_by

TEXT = """\
nvbandwidth Version: v0.10
Built from Git version: v0.10

Device 0: some GPU (00000000:19:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     26.03       N/A

SUM host_to_device_memcpy_ce 26.03
COEFFICIENT_OF_VARIATION host_to_device_memcpy_ce 0.00

Running device_to_host_bidirectional_memcpy_ce.
memcpy CE CPU(row) <-> GPU(column) bandwidth (GB/s)
           0         1
 0     18.56     18.37

SUM device_to_host_bidirectional_memcpy_ce 36.93

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    276.07
 1    276.19       N/A
"""


def case(name: str = "host_to_device_memcpy_ce", **more: Any) -> dict[str, Any]:
    description = "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)"
    entry = {"name": name, "status": "Passed", "bandwidth_description": description}
    return entry | {"bandwidth_matrix": [["55.59", "N/A"]]} | more


def written(folder: Path, *cases: dict[str, Any], **more: Any) -> Path:
    path = folder / "out.json"
    path.write_text(json.dumps({"nvbandwidth": {"version": "v0.8", "testcases": list(cases)} | more}))
    return path


refusal = partial(refusal_by, read_nvbandwidth)


def test_plain_matrices(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text(TEXT)
    found = read_nvbandwidth(tmp_path / "out.txt", size=512)
    assert [(one.direction, one.both_ways, one.gpu, one.rate) for one in found] == [
        ("host_to_device", False, 0, 26_030_000_000),
        ("device_to_host", True, 0, 18_560_000_000),
        ("device_to_host", True, 1, 18_370_000_000),
    ]
    assert {(one.size, one.tool, one.version) for one in found} == {(512, "nvbandwidth", "0.10")}


def test_json_has_text_in_its_cells(tmp_path: Path) -> None:
    waived = case("device_to_host_memcpy_ce", status="Waived", bandwidth_matrix=None)
    (one,) = read_nvbandwidth(written(tmp_path, case(), waived, case("all_to_host_memcpy_ce")))
    assert (one.direction, one.gpu, one.rate, one.version) == ("host_to_device", 0, 55_590_000_000, "0.8")
    assert one.size == 64 * 1024**2


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            case(status="Error", error="CUDA_ERROR_OUT_OF_MEMORY"),
            "testcases[0].status: host_to_device_memcpy_ce ended with Error (CUDA_ERROR_OUT_OF_MEMORY)",
        ),
        (case(bandwidth_matrix=[["fast"]]), "bandwidth_matrix[0][0]: 'fast' is not a rate above 0 GB/s"),
        (case(bandwidth_matrix=[["nan"]]), "'nan' is not a rate above 0"),
        (case(bandwidth_matrix="x"), "must be a list of rows"),
        (case(bandwidth_description="latency (ns)"), "must be in GB/s"),
        (case("host_to_device_memcpy_sm"), "contains no copies between host and GPU"),
    ],
)
def test_tests_that_are_refused(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    assert message in refusal(written(tmp_path, entry))


def test_a_failed_run_is_refused(tmp_path: Path) -> None:
    assert "nvbandwidth.error: nvbandwidth failed: no driver" in refusal(written(tmp_path, error="no driver"))


def test_a_row_that_lost_cells_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text(TEXT.replace("26.03       N/A", "26.03"))
    assert refusal(tmp_path / "out.txt") == ":9: the row has 1 cells for 2 GPUs; unwrap it"


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("hello\n")
    assert "contains no copies" in refusal(tmp_path / "out.txt")
    (tmp_path / "out.txt").write_text('{"fio version": 1}')
    assert "is this the output of nvbandwidth -j?" in refusal(tmp_path / "out.txt")
