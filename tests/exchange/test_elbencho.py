"""elbencho's table of phases."""

from __future__ import annotations

import datetime
from functools import partial
from pathlib import Path

import pytest

from simoffload_calibrate.importers.benchmark_files import read_elbencho
from tests.exchange.refusals import refusal_by

MIB = 1024**2
HEADER = (
    "ISO date,label,path type,paths,hosts,threads,dirs,files,file size,block size,direct IO,random,"
    "random aligned,IO depth,shared paths,truncate,operation,time ms [first],time ms [last],"
    "entries/s [first],entries/s [last],IOPS [first],IOPS [last],MiB/s [first],MiB/s [last],CPU% [first],"
    "CPU% [last],entries [first],entries [last],MiB [first],MiB [last],Ent lat us [min],Ent lat us [avg],"
    "Ent lat us [max],IO lat us [min],IO lat us [avg],IO lat us [max],rwmix read MiB/s [last],version"
)
ROW = "2026-05-22T16:09:38,,dir,1,2,8,1,4,268435456,1048576,1,0,,4,1,0,"
MKDIRS = ROW + "MKDIRS,2,5,3277,1466,,,,,8,7,8,8,,,812,1068,1378,,,,,3.1-1"
READ = (
    ROW
    + "READ,840,900,37,35,9600,9000,9600,9000,9,8,32,32,8192,8192,49000,214000,404000,553,3200,6900,,3.1-1"
)


def written(folder: Path, *lines: str) -> Path:
    path = folder / "out.csv"
    path.write_text("\n".join([*lines, ""]))
    return path


refusal = partial(refusal_by, read_elbencho)


def test_the_rate_when_all_threads_had_ended(tmp_path: Path) -> None:
    (run,) = read_elbencho(written(tmp_path, HEADER, MKDIRS, READ))
    assert (run.operation, run.rate) == ("read", 9000 * MIB)
    assert (run.block, run.queue_depth, run.jobs) == (MIB, 4, 16)  # 2 hosts x 8 threads
    assert run.latency == pytest.approx(3200e-6)
    assert (run.direct, run.random, run.version) == (True, False, "3.1-1")
    assert run.date == datetime.date(2026, 5, 22)


def test_runs_are_appended_with_or_without_a_header(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER, READ, READ.replace("READ", "WRITE"), HEADER, READ)
    assert [run.operation for run in read_elbencho(path)] == ["read", "write", "read"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["ISO Date,Label,Phase,RuntimeMS,Rank,MixType,Done%,DoneBytes,MiB/s,IOPS,"],
            ":1: this is the CSV of live statistics (--livecsv); give the one of --csvfile",
        ),
        (["a,b", "1,2"], ":1: no column operation, MiB/s [last], block size, threads"),
        ([HEADER, MKDIRS], ": contains no phase READ or WRITE"),
        ([HEADER, "2026,x"], ":2: the row has 2 cells for 39 columns; was elbencho interrupted?"),
        ([HEADER, READ.replace("9600,9000", "9600,inf")], ":2: MiB/s [last]: must be a finite number"),
        ([HEADER, READ.replace("1048576", "")], ":2: block size: missing"),
        ([HEADER, READ.replace("1048576", "1M")], ":2: block size: must be a whole number above 0, not '1M'"),
        ([HEADER, READ.replace(",,3.1-1", ",700,3.1-1")], ":2: the phase mixed reads and writes"),
        (
            [HEADER, READ.replace("2026-05-22", "yesterday")],
            ":2: ISO date: 'yesterdayT16:09:38' is not an ISO date",
        ),
        ([], ": contains no phase"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    assert message in refusal(written(tmp_path, *lines))
