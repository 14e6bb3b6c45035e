"""Work that the storage decides, and work that the host thread decides although it comes from drives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from simoffload.cli.planning import recommended
from simoffload.documents import Edit, parse_yaml
from simoffload.extensions.purchases.search import Family
from simoffload.planning.advise import Advice, EvaluatedChange, advise
from simoffload.planning.confidence import tie
from simoffload.planning.evaluator import Evaluator
from simoffload.results.capacity import Change
from simoffload.results.result import SimulationResult
from simoffload.scenario import LoadedScenario, read_scenario, resolve
from simoffload.simulation import simulate
from tests.cli.conftest import SCENARIO

STORAGE_BOUND = """\
name: storage-bound
model: bloom-7b1
platform: dgx-a100
workload: {batch_size: 4, prompt_length: 8, output_length: 2}
strategy:
  ranks: 8
  weights: raid
  ds_config:
    zero_optimization: {offload_param: {buffer_size: 3e9}}
    aio: {block_size: 1048576, queue_depth: 32, intra_op_parallelism: 4}
"""
HOST_BOUND = """\
name: host-bound
model: opt-350m
platform: dgx-h100
equipment:
  tiers: {raid: {profile: raid0-4x-ps1010-7.68tb, at: [cpu]}}
workload: {batch_size: 2, prompt_length: 8, output_length: 2}
strategy:
  ranks: 1
  weights: raid
  ds_config:
    zero_optimization: {offload_param: {buffer_size: 1e9, buffer_count: 10}}
    aio: {block_size: 1048576, queue_depth: 32, intra_op_parallelism: 4}
"""


TIERS = ("raid", "dram", "hbm", "ai400x2", "nfs")
BATCHES = (4, 8, 16)


def tier(name: str) -> Change:
    return Change("hardware", f"weights on {name}", (Edit.at("strategy.weights", name),))


def batch(size: int) -> Change:
    return Change("hardware", f"batch {size}", (Edit.at("workload.batch_size", size),))


KEPT = Change("hardware", "")


def family(*storage: Change) -> Family:
    """The purchases of some storage with each batch."""
    batches = tuple((size // BATCHES[0], batch(size)) for size in BATCHES)
    return Family(KEPT, storage, (KEPT,), batches)


SPACE = tuple(family(tier(name)) for name in TIERS)
"""Fifteen purchases."""


def loaded(text: str, *overrides: str) -> LoadedScenario:
    return resolve(parse_yaml(text, name="s.yaml"), overrides=overrides)


@cache
def known(text: str, *overrides: str) -> Evaluator:
    """A scenario with its simulated changes, which all tests of this process share."""
    return Evaluator(loaded(text, *overrides))


def run(advice: Advice, folder: Path) -> list[SimulationResult]:
    """The results of all recommended scenarios, read from files as a user would, in their order."""
    for name, text in recommended(advice).items():
        (folder / name).write_text(text)
    return [simulate(read_scenario(path)) for path in sorted(folder.glob("*.yaml"))]


@pytest.fixture
def small(tmp_path: Path) -> LoadedScenario:
    """A model that every tier holds."""
    return resolve(parse_yaml(SCENARIO, name="small.yaml", root=tmp_path))


@pytest.fixture(scope="session")
def stored() -> Advice:
    """Advice on work that the storage decides."""
    return advise(known(STORAGE_BOUND))


@pytest.fixture(scope="session")
def hosted() -> Advice:
    """Advice on work that the host thread decides."""
    return advise(known(HOST_BOUND))


def assert_in_order(
    tried: Sequence[EvaluatedChange], value: Callable[[EvaluatedChange], float | None]
) -> None:
    """Assert that changes are in the order of a value, the smallest first, those that cost nothing and
    purchases each among themselves: a free change may stand before a purchase that gains as much."""
    for free in (True, False):
        order = [(one.change.rank, value(one) or 0.0) for one in tried if one.is_free is free]
        assert order == sorted(order)
    for at, paid in enumerate(tried):
        for later in tried[at + 1 :]:
            if paid.helps and later.helps and not paid.is_free and later.is_free:
                assert (later.change.rank, value(later) or 0.0) > (paid.change.rank, value(paid) or 0.0)
                assert later.change.rank > paid.change.rank or not tie(paid.result, later.result)
