"""fio's JSON is read, including unusual options, and wrong files are refused."""

from __future__ import annotations

import datetime
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simoffload_calibrate.importers.benchmark_files import read_fio_json
from tests.exchange.refusals import refusal_by

DATA = Path(__file__).parent / "data" / "fio_seqread.json"
MIB = 1024**2


def job(name: str = "a", *, rate: int = 1000, kind: str = "read", **more: Any) -> dict[str, Any]:
    """Return one entry of ``jobs``; keywords in capitals replace its keys, others add options."""
    options = {"rw": kind, "bs": "1M", "iodepth": "8", "ioengine": "libaio", "direct": "1"}
    options |= {key: value for key, value in more.items() if key.islower()}
    operation = "write" if "write" in kind else "read"
    latency = {"N": 10, "mean": 2e6}
    entry = {"jobname": name, "groupid": 0, "error": 0, "job options": options}
    entry[operation] = {"io_bytes": 1, "bw_bytes": rate, "bw": rate // 1024, "lat_ns": latency}
    return entry | {key.lower(): value for key, value in more.items() if key.isupper()}


def written(folder: Path, *jobs: dict[str, Any], **top: Any) -> Path:
    path = folder / "out.json"
    path.write_text(json.dumps({"fio version": "fio-3.33", "jobs": list(jobs)} | top))
    return path


refusal = partial(refusal_by, read_fio_json)


def test_a_real_file() -> None:
    (run,) = read_fio_json(DATA)
    assert run.operation == "read"
    assert (run.block, run.queue_depth, run.jobs, run.outstanding) == (MIB, 8, 1, 8 * MIB)
    assert run.rate == 1016547226  # not bw, which is in KiB/s
    assert run.latency == pytest.approx(8.239754586491e-3)
    assert (run.direct, run.random) == (True, False)
    assert (run.tool, run.version, run.file) == ("fio", "3.33", "fio_seqread.json")
    assert run.date == datetime.date(2026, 11, 20)


def test_warnings_before_the_json_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "noisy.json"
    path.write_text("fio: this platform {does not} support\nnote: x\n" + DATA.read_text())
    assert read_fio_json(path)[0].rate == 1016547226


def test_jobs_of_a_group_are_summed(tmp_path: Path) -> None:
    (run,) = read_fio_json(written(tmp_path, job(rate=1000, numjobs="2"), job(rate=500, numjobs="2")))
    assert (run.rate, run.jobs) == (1500, 2)


def test_a_reported_group_is_one_entry(tmp_path: Path) -> None:
    (run,) = read_fio_json(written(tmp_path, job(rate=1500, numjobs="4", group_reporting="1")))
    assert (run.rate, run.jobs) == (1500, 4)


def test_other_groups_and_operations_stay_apart(tmp_path: Path) -> None:
    path = written(tmp_path, job(), job("b", GROUPID=1), job("c", kind="write", rate=7))
    assert [(run.operation, run.rate) for run in read_fio_json(path)] == [
        ("read", 1000),
        ("read", 1000),
        ("write", 7),
    ]


def test_latency_is_the_mean_of_all_requests(tmp_path: Path) -> None:
    read = {"io_bytes": 1, "bw_bytes": 5, "lat_ns": {"N": 30, "mean": 6e6}}
    (run,) = read_fio_json(written(tmp_path, job(), job("b", READ=read)))
    assert run.latency == pytest.approx(5e-3)  # (10 x 2 ms + 30 x 6 ms) / 40


def test_latencies_may_be_missing(tmp_path: Path) -> None:
    (run,) = read_fio_json(written(tmp_path, job(READ={"io_bytes": 1, "bw_bytes": 5})))
    assert run.latency is None


@pytest.mark.parametrize(
    ("options", "block"),
    [
        ({"bs": "128k"}, 131072),
        ({"bs": "4096"}, 4096),
        ({"bs": "1MB"}, MIB),
        ({"bs": "1MiB"}, 10**6),
        ({"bs": "1MiB", "kb_base": "1000"}, MIB),
        ({"bs": "1M", "kb_base": "1000"}, 10**6),
        ({"bs": "2M,1M"}, 2 * MIB),
    ],
)
def test_block_sizes_as_fio_means_them(tmp_path: Path, options: dict[str, str], block: int) -> None:
    assert read_fio_json(written(tmp_path, job(**options)))[0].block == block


def test_global_options_and_defaults(tmp_path: Path) -> None:
    entry = job()
    entry["job options"] = {"bs": "64k"}
    (run,) = read_fio_json(written(tmp_path, entry, **{"global options": {"iodepth": "32", "bs": "4k"}}))
    # psync, the default engine, has one request in flight; direct is off by default.
    assert (run.block, run.queue_depth, run.direct) == (65536, 1, False)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            job(ERROR=5),
            ": jobs[0].error: the job ended with error 5, so its rates are not valid; run it again",
        ),
        (job(WRITE={"io_bytes": 9, "bw_bytes": 9}), ": jobs[0].read: the job mixed reads and writes"),
        (job(bs="big"), ": jobs[0].job options.bs: 'big' is not a size; fio writes e.g. 1M or 128k"),
        (job(bssplit="4k/50:8k/50"), "requests of several sizes"),
        (job(iodepth="0"), ": jobs[0].job options.iodepth: must be a whole number above 0, not '0'"),
        (job(READ={"io_bytes": 9}), ": jobs[0].read.bw_bytes: missing or 0"),
        (job(READ={"io_bytes": "9"}), ": jobs[0].read.io_bytes: must be a finite number"),
        (job(READ=[]), ": jobs[0].read: must be an object"),
    ],
)
def test_jobs_that_are_refused(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    assert message in refusal(written(tmp_path, entry))


def test_jobs_at_once_with_other_settings_are_refused(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, job(), job("b", iodepth="1")))
    assert (
        ": jobs[1].job options: ran concurrently with jobs[0] with another bs, iodepth or direct" in message
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fio-3.33\nall good\n", ': contains no JSON object (no line begins with "{")'),
        (
            'warning\n{"jobs": [\n,',
            ":3:1: not valid JSON (Expecting value); was fio interrupted? Run it again",
        ),
        ('{"jobs": NaN}', ":1: unusable JSON (NaN is not a finite number)"),
        (
            '{"fio version": "fio-3.33", "jobs": [{"error": 1e999}]}',
            ": jobs[0].error: must be a finite number",
        ),
        ('{"a": 1}', ": fio version: missing"),
        ('{"fio version": "x", "client_stats": []}', ": jobs: must be a non-empty list of objects"),
        ('{"a":' + "[" * 100_000, ":1: unusable JSON (nested too deeply)"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert message in refusal(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "missing.json") == ": no such file"
    assert refusal(tmp_path) == ": is a folder, not a file; import the files that the tool wrote, run by run"
    big = tmp_path / "big.json"
    with big.open("wb") as file:
        file.truncate(20_000_001)
    assert "larger than 20 MB" in refusal(big)
    big.write_bytes(b"\n\xff")
    assert refusal(big).startswith(":2: not text in UTF-8")
