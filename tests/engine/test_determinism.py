"""The same schedule gives the same columns: twice, and in another process with another hash seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simoffload.engine import execute
from simoffload.schedule import Block, Cause, Dependency, Link, Op, Route, Schedule


def uneven() -> Schedule:
    """Four ranks that fall out of step on unequal links, and meet at a gather."""
    ranks = range(4)
    links = (Link("storage", 5 * 10**9), *(Link(f"pcie{rank}", 2 * 10**9 + 7 * rank) for rank in ranks))
    routes = (
        Route(Cause.own("read"), tuple(((0, 1), (1 + rank, 2)) for rank in ranks), 15 * 10**8, 3),
        Route(Cause.own("write"), tuple(((0, 2),) for rank in ranks), 10**9 + 1, 2),
    )
    ops = (
        Op("hook", "a", 0, fixed=90_000_001),
        Op("read", "a", 1, 20_000_003, 10**6 + 7, 0, (Dependency(0), Dependency(2, 1))),
        Op("write", "a", 2, 0, 10**5 + 3, 1, (Dependency(1),)),
        Op("gather", "a", 3, 10**6, 0, -1, (Dependency(1),), collective=True),
        Op("wait", "a", 0, after=(Dependency(3, 1),)),
    )
    streams = ("host", "read", "write", "gather")
    return Schedule("uneven", 4, streams, links, routes, (Block("layer", ops, 50),))


def digest() -> str:
    timeline = execute(uneven())
    hashed = hashlib.sha256()
    for column in timeline.all_operations:
        hashed.update(column.tobytes())
    totals = (
        timeline.makespan,
        timeline.link_bytes,
        timeline.link_busy,
        timeline.link_saturated,
    )
    hashed.update(repr(totals).encode())
    return hashed.hexdigest()


def test_the_story_is_uneven() -> None:
    operations = execute(uneven()).all_operations
    ends = {end for rank, end in zip(operations.rank, operations.end, strict=True) if rank}
    assert len(ends) > 300


def test_two_runs_are_equal() -> None:
    assert digest() == digest()


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_the_hash_seed_does_not_matter(seed: str, repository: Path) -> None:
    code = "from tests.engine.test_determinism import digest; print(digest())"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(repository)}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == digest()
