"""Huge numbers in a scenario: searches bisect, and what is refused says how it is written."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import pytest

from simoffload.bisection import first_that_holds, least_factor
from simoffload.documents import parse_yaml
from simoffload.errors import InputError
from simoffload.planning import evaluator
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.remedies import settings
from simoffload.scenario import LoadedScenario, read_scenario, resolve
from simoffload.simulation.capacity import memory_footprint
from simoffload.strategies.programs.vllm import group_of

OPTIMIZER = "strategy.ds_config.zero_optimization.offload_optimizer"
MOST = 60
"""Plans for one setting."""


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[LoadedScenario] = []

    def counted(scenario: LoadedScenario) -> object:
        planned.append(scenario)
        assert len(planned) < MOST, "the search counts one by one"
        return memory_footprint(scenario)

    monkeypatch.setattr(evaluator, "memory_footprint", counted)


@pytest.mark.parametrize(
    ("name", "override", "found"),
    [
        ("training/bloom-7b1", "checkpoint={tier: raid, keep: 1000000000}", "keep 1,000,000,000 → 179"),
        (
            "training/gpt-1t",
            f"{OPTIMIZER}.buffer_count=1000000000000",
            "offload_optimizer.buffer_count 1,000,000,000,000 → 237",
        ),
        ("vllm/llama-3-70b", "strategy.cpu_offload_gb=0", "cpu_offload_gb 0 → 48"),
    ],
)
def test_a_huge_number_is_bisected_to_the_one_that_fits(name: str, override: str, found: str) -> None:
    (change,) = settings(Evaluator(read_scenario(name, overrides=[override])))
    assert change.description == found
    path, less = ".".join(map(str, change.edits[0].path)), change.edits[0].value
    more = less + (-1 if "cpu_offload_gb" in path else 1)
    nearer = read_scenario(name, overrides=[override, f"{path}={more}"])
    assert not all(use.fits for use in memory_footprint(nearer))


def test_the_first_that_holds() -> None:
    tried: list[int] = []

    def holds(value: int) -> bool:
        tried.append(value)
        return value <= 12345

    assert first_that_holds(range(10**12, 0, -1), holds) == 12345
    assert len(tried) <= 41
    assert first_that_holds(range(3), lambda _: False) is None
    assert first_that_holds([], holds) is None


@pytest.mark.parametrize("margin", [lambda factor: factor - 2, lambda factor: 1 if factor >= 2 else -1])
def test_the_least_factor_is_where_halves_of_the_range_lead(margin: Callable[[float], float]) -> None:
    tried: list[float] = []
    low, high = 1e-3, 1e3
    while high / low > 1.01:
        middle = sqrt(low * high)
        low, high = (low, middle) if middle >= 2 else (middle, high)

    def counted(factor: float) -> float:
        tried.append(factor)
        return margin(factor)

    assert least_factor(1e-3, 1e3, counted) == high
    assert len(tried) <= 22
    tried.clear()
    assert least_factor(1e-3, 1e3, counted, {1.9: margin(1.9), 2.2: margin(2.2)}) == high
    assert len(tried) <= 5


def test_groups_of_layers_are_the_smallest_that_offload_as_many() -> None:
    for layers in (1, 7, 32, 61):
        first: dict[int, tuple[int, int]] = {}
        for group in range(1, layers + 1):
            for number in range(1, group + 1):
                inside = sum(index % group >= group - number for index in range(layers))
                first.setdefault(inside, (group, number))
        for count in range(1, layers + 1):
            group, number = group_of(layers, count)
            assert (group, number) == first[count]
    assert group_of(100_000, 99_999) == (100_000, 99_999)


SCENARIO = """\
name: a
model: bloom-560m
platform: dgx-a100
workload: {batch_size: %s, prompt_length: 1, output_length: 1}
strategy: {}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1.0e+9", "must be a whole number, got 1.0e+9; write 1000000000"),
        ("2.0", "must be a whole number, got 2.0; write 2"),
        ("2.5", "must be a whole number, got 2.5"),
        ("1.0e+300", "must be a whole number, got 1.0e+300"),
        ("1000000000", "must be at most 1000000, got 1000000000"),
    ],
)
def test_a_whole_number_written_as_another_says_how_it_is_written(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(parse_yaml(SCENARIO % text, name="a.yaml", root=None))
    assert [one.message for one in caught.value.problems] == [message]
