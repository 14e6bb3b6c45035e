"""Logs of DeepSpeed's ds_io and ds_nvme_tune."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from simoffload_calibrate.importers.benchmark_files import read_ds_io
from tests.exchange.refusals import refusal_by

MIB, GIB = 1024**2, 1024**3
LOG = """\
Task Read Latency = 0.031647682189941406 sec
Task Read Speed = 12.342926020792527 GB/sec
E2E Read Latency = 0.031697988510131836 sec
E2E Read Speed = 12.5 GB/sec
"""
TUNED = """\
Best performance (GB/sec): read =  3.50, write =  3.25
{
   "aio": {
      "single_submit": "false",
      "overlap_events": "true",
      "num_threads": 8,
      "queue_depth": 32,
      "block_size": 1048576
   }
}
"""


def written(folder: Path, text: str, name: str = "log.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


refusal = partial(refusal_by, read_ds_io)


def test_a_gigabyte_is_binary_and_all_tasks_count(tmp_path: Path) -> None:
    (run,) = read_ds_io(written(tmp_path, LOG))
    assert (run.operation, run.rate) == ("read", 12.5 * GIB)
    assert (run.block, run.queue_depth, run.jobs) == (MIB, 128, 1)
    assert (run.latency, run.direct, run.tool) == (None, None, "ds_io")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("read_single_overlap_ftd1_d32_bs8M_p4.txt", (8 * MIB, 32, 4)),
        ("read_block_sequential_t2_p4_d16_bs256K.txt", (MIB // 4, 16, 8)),
    ],
)
def test_settings_stand_in_the_name(tmp_path: Path, name: str, settings: tuple[int, int, int]) -> None:
    (run,) = read_ds_io(written(tmp_path, LOG, name))
    assert (run.block, run.queue_depth, run.jobs) == settings


def test_the_end_of_a_tuning(tmp_path: Path) -> None:
    read, write = read_ds_io(written(tmp_path, TUNED))
    assert (read.operation, read.rate) == ("read", 3.5 * GIB)
    assert (write.operation, write.rate) == ("write", 3.25 * GIB)
    assert (read.block, read.queue_depth, read.jobs) == (MIB, 32, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Task Read Speed = 12 GB/sec\n", ': contains no line "E2E Read Speed'),
        ("\nE2E Write Speed = nan GB/sec\n", ":2: 'nan' is not a speed above 0 in GB/sec; run it again"),
        (TUNED.splitlines()[0], ':1: the settings {"aio": {…}} must follow'),
        (TUNED.replace("32", '"deep"'), ": aio.queue_depth: must be a whole number above 0, not 'deep'"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(written(tmp_path, text))
