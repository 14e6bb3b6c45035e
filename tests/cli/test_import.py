"""``simoffload profiles import``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from tests.cli.conftest import Program

BASE = "micron-9400-pro-7.68tb"
MIB = 1024**2
HEADER = (
    "ISO date,threads,block size,direct IO,random,IO depth,operation,MiB/s [last],IO lat us [avg],version\n"
)
SWEEP = (
    HEADER
    + "2026-05-22T16:09:38,1,1048576,1,0,1,READ,2000,600,3.0\n"
    + "2026-05-22T16:19:38,4,1048576,1,0,8,READ,6000,5000,3.0\n"
    + "2026-05-22T16:29:38,4,4096,1,1,32,READ,4000,,3.0\n"
    + "2026-05-23T16:29:38,4,1048576,1,0,8,WRITE,3000,9000,3.0\n"
)
COPIES = """\
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
     0      1      2
0  20.00  24.00  25.00

Running host_to_device_bidirectional_memcpy_ce.
memcpy CE CPU(row) <-> GPU(column) bandwidth (GB/s)
     0      1      2
0  12.00  18.00  19.00
"""


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    (tmp_path / "sweep.csv").write_text(SWEEP)
    return "sweep.csv"


def test_a_drive_from_a_sweep(program: Program, sweep: str) -> None:
    argv = ("profiles", "import", "elbencho", sweep, "--id", "mine", "--from", BASE, "-o", "mine.yaml")
    answer = program(*argv)
    assert (answer.status, answer.err) == (
        0,
        (
            "warning: no write at queue depth 1 with its latency: write_latency is not measured\n"
            f"warning: not measured, kept from {BASE}: capacity 7.68 TB, write_latency 10 us, "
            "random_write 300000, pcie.lanes 4\n"
        ),
    )
    assert answer.out == (
        "mine.yaml: drive, measured: read, read_latency, random_read, write, read_by_outstanding\n"
    )
    data = yaml.safe_load(Path("mine.yaml").read_text())
    assert (data["kind"], data["id"]) == ("drive", "mine")
    assert data["read"]["value"] == "6291.456 MB/s"
    assert data["write"]["value"] == "3145.728 MB/s"
    assert data["random_read"]["value"] == 1_024_000
    assert data["read_latency"]["value"] == "433.333 us"  # 600 us less 1 MiB at 6000 MiB/s
    curve = data["read_by_outstanding"]
    assert curve["points"] == [["1 MiB", "2097.152 MB/s"], ["32 MiB", "6291.456 MB/s"]]
    assert {curve["origin"], data["read"]["origin"]} == {"measured"}
    assert data["read"]["source"] == ("elbencho 3.0; sweep.csv; 1 MiB blocks, queue depth 8, 4 jobs, direct")
    assert [str(data[key]["date"]) for key in ("read", "write")] == ["2026-05-22", "2026-05-23"]
    assert data["write_latency"]["origin"] == "estimate"  # as in the profile it was made from
    assert data["write_latency"]["source"].startswith(f"not measured here; of {BASE}: ")
    assert data["capacity"]["value"] == "7.68 TB"
    assert program("profiles", "check", "mine.yaml").status == 0


def test_a_reading_test_alone_gives_no_drive_that_writes_ten_times_as_fast(
    program: Program, repository: Path
) -> None:
    """1.02 GB/s measured beside 10 GB/s of writing and 3.3 million requests that nobody measured."""
    real = str(repository / "tests" / "exchange" / "data" / "fio_seqread.json")
    argv = ("profiles", "import", "fio", real, "--id", "mine", "--from", "micron-9550-pro-7.68tb")
    answer = program(*argv, "--json")
    rendered = json.loads(answer.out)
    data = yaml.safe_load(rendered["text"])
    assert (answer.status, rendered["measured"]) == (0, ["read"])
    assert (rendered["estimated"], rendered["left_out"]) == (["write"], ["random_read", "random_write"])
    assert (data["write"]["value"], data["write"]["origin"]) == ("726.1 MB/s", "estimate")  # 10 / 14 of read
    assert not {"random_read", "random_write"} & data.keys()
    assert {key for key in data if isinstance(data[key], dict) and data[key].get("origin") == "measured"} == {
        "read"
    }
    assert "write" not in rendered["kept"]
    warned = " ".join(rendered["warnings"])
    assert "not measured: write; 10 GB/s of micron-9550-pro-7.68tb is not plausible" in warned
    assert "not measured: random_read; 3300000 of micron-9550-pro-7.68tb would need 13.5 GB/s" in warned
    assert "capacity 7.68 TB, read_latency 60 us, write_latency 15 us, endurance.dwpd 1" in warned
    assert "not measured: write; 10 GB/s" in data["notes"].replace("Not", "not")
    Path("mine.yaml").write_text(rendered["text"])
    assert program("profiles", "check", "mine.yaml").status == 0


def test_what_somebody_measured_of_another_drive_is_an_estimate_here(program: Program) -> None:
    """The read rate stays below; what is plausible is kept as it is."""
    Path("r.csv").write_text(HEADER + "2026-05-22T16:09:38,4,1048576,1,0,8,READ,3000,600,3.0\n")
    base = "azure-nc-a100-v4-960gb"
    answer = program("profiles", "import", "elbencho", "r.csv", "--id", "mine", "--from", base)
    write = yaml.safe_load(answer.out)["write"]
    assert (write["value"], write["origin"]) == ("1.4 GB/s", "estimate")
    assert write["source"].startswith(f"not measured here; of {base}: deepspeedai")


def test_a_cache_is_not_kept_beside_writing_that_is_slower_than_behind_it(program: Program) -> None:
    rows = ("1,READ,3000,600", "1,WRITE,{},900")
    argv = ("profiles", "import", "elbencho", "w.csv", "--id", "mine", "--from", "samsung-980-pro-2tb")
    for rate, has in ((4000, True), (1000, False)):
        lines = [f"2026-05-22T16:09:38,4,1048576,1,0,{row.format(rate)},3.0\n" for row in rows]
        Path("w.csv").write_text(HEADER + "".join(lines))
        answer = program(*argv)
        assert answer.status == 0
        assert ("write_cache" in yaml.safe_load(answer.out)) is has
        assert (
            "write_cache; its rate_after of 2 GB/s in samsung-980-pro-2tb is above" in answer.err
        ) is not has
        assert ("write_cache.capacity 215 GB" in answer.err) is has


def test_one_direction_of_a_narrow_slot_says_something_of_the_other(program: Program) -> None:
    """6 GB/s to the GPU: 55 GB/s from it cannot be."""
    Path("nv.txt").write_text(COPIES.split("\n\n", 1)[0].replace("20.00  24.00  25.00", "6.00 6.00 6.00"))
    answer = program(
        "profiles", "import", "nvbandwidth", "nv.txt", "--id", "slot", "--from", "gen5", "--json"
    )
    rendered = json.loads(answer.out)
    assert rendered["estimated"] == ["device_to_host"]
    curve = yaml.safe_load(rendered["text"])["device_to_host"]
    assert curve["origin"] == "estimate"
    assert curve["points"][-1] == ["1 GiB", "5989 MB/s"]
    assert any("device_to_host; 55.4 GB/s of gen5 is not plausible" in text for text in rendered["warnings"])


def test_a_file_is_overwritten_only_when_told(program: Program, sweep: str) -> None:
    argv = ("profiles", "import", "elbencho", sweep, "--id", "mine", "--from", BASE, "-o", "mine.yaml")
    Path("mine.yaml").write_text("precious")
    answer = program(*argv)
    assert (answer.status, answer.err) == (
        2,
        "error: mine.yaml: exists; name another file or give --overwrite\n",
    )
    assert Path("mine.yaml").read_text() == "precious"
    assert program(*argv, "--overwrite").status == 0
    assert program("profiles", "check", "mine.yaml").status == 0


def test_pcie_from_nvbandwidth(program: Program) -> None:
    Path("nv.txt").write_text(COPIES)
    os.utime("nv.txt", (1_700_000_000, 1_700_000_000))
    argv = ("profiles", "import", "nvbandwidth", "nv.txt", "--id", "slot", "--from", "gen4")
    answer = program(*argv, "--buffer-size", "512 MiB")
    assert answer.status == 0
    lines = answer.err.splitlines()
    assert lines[0] == "warning: no device_to_host_memcpy_ce: device_to_host is not measured"
    assert lines[1].startswith("warning: not measured, kept from gen4: lane_rate 16 Gb/s, encoding 0.9846, ")
    assert "device_to_host 1 MB: 15.8 GB/s, 10 MB: 25.4 GB/s" in lines[1]
    assert len(lines) == 2
    data = yaml.safe_load(answer.out)
    assert data["host_to_device"]["points"] == [["512 MiB", "24000 MB/s"]]  # the median GPU
    assert data["both_ways"]["value"] == 0.75
    assert str(data["host_to_device"]["date"]) == "2023-11-14"
    assert data["host_to_device"]["source"] == (
        "nvbandwidth; nv.txt; copy engine, 512 MiB buffers, median of GPU 0, 1, 2"
    )
    assert data["device_to_host"]["points"][0] == ["1 MB", "15.8 GB/s"]
    Path("slot.yaml").write_text(answer.out)
    assert program("profiles", "check", "slot.yaml").status == 0


def test_buffered_reads_are_marked(program: Program, repository: Path) -> None:
    real = (repository / "tests" / "exchange" / "data" / "fio_seqread.json").read_text()
    Path("buffered.json").write_text(real.replace('"direct" : "1"', '"direct" : "0"'))
    answer = program("profiles", "import", "fio", "buffered.json", "--id", "mine", "--from", BASE)
    warning = "uffered I/O (direct=0) in buffered.json: rates may be those of the page cache"
    assert f"warning: b{warning}" in answer.err
    assert f"B{warning}." in yaml.safe_load(answer.out)["notes"]


def test_the_end_of_a_tuning(program: Program) -> None:
    aio = '{"aio": {"num_threads": 2, "queue_depth": 32, "block_size": 1048576}}'
    Path("tune.log").write_text(f"Best performance (GB/sec): read =  2.00, write =  1.00\n{aio}\n")
    answer = program("profiles", "import", "ds-io", "tune.log", "--id", "mine", "--from", BASE, "--json")
    data = json.loads(answer.out)
    assert data["measured"] == ["read", "write"]
    assert yaml.safe_load(data["text"])["read"]["value"] == "2147.483648 MB/s"
    assert "capacity" in data["kept"]


def test_names_of_files_cannot_break_the_profile(program: Program) -> None:
    name = 'a"b: {c\\\x1b[2J}.csv'
    Path(name).write_text(SWEEP)
    answer = program("profiles", "import", "elbencho", name, "--id", "mine", "--from", BASE)
    assert "\x1b" not in answer.out
    Path("odd.yaml").write_text(answer.out)
    assert program("profiles", "check", "odd.yaml").status == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("--id", "mine"),
            "--from: missing: name the drive that supplies the other numbers (size, slot, …)",
        ),
        (("--id", "Mine!", "--from", BASE), '--id: "Mine!" is not an id'),
        (("--id", "x" * 300, "--from", BASE), "has 300 characters; an id has at most 80"),
        (("--id", "mine", "--from", "micron"), '--from: there is no drive "micron"'),
        (("--id", "mine", "--from", BASE, "-o", "x.json"), "x.json: the name of a profile must end in .yaml"),
        (("--id", "mine", "--from", BASE, "-o", "no/x.yaml"), "its folder does not exist"),
        (("--id", "mine", "--from", BASE, "--overwrite"), "--overwrite: there is nothing to overwrite"),
        (
            ("--id", "mine", "--from", BASE, "--buffer-size", "1 MiB"),
            "--buffer-size: only nvbandwidth has this option",
        ),
        (("--from", BASE), "required: --id"),
    ],
)
def test_options_that_are_refused(program: Program, sweep: str, argv: tuple[str, ...], message: str) -> None:
    answer = program("profiles", "import", "elbencho", sweep, *argv)
    assert answer.status == 2
    assert message in answer.err
    assert answer.out == ""


def test_without_reads_there_is_no_drive(program: Program) -> None:
    Path("w.csv").write_text(HEADER + SWEEP.splitlines()[-1] + "\n")
    answer = program(
        "profiles", "import", "elbencho", "w.csv", "--id", "mine", "--from", BASE, "-o", "m.yaml"
    )
    assert answer.status == 2
    assert answer.err.startswith("error: w.csv: no reads of 128 KiB or more")
    assert not Path("m.yaml").exists()


def test_an_unknown_format_is_named(program: Program) -> None:
    answer = program("profiles", "import", "foi", "x", "--id", "mine")
    assert (answer.status, 'did you mean "fio"?' in answer.err) == (2, True)
