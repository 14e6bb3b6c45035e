"""Recorded runs of llama.cpp on one H100, and published rates: errors within the stated bars."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import median

import pytest

from simoffload.planning.errors import calibration_errors
from validation.llama_cpp import (
    _ABSOLUTE,
    _PUBLISHED,
    _line,
    divided_placements,
    faulting_rates,
    placements,
    published_rates,
    recorded_rates,
)

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "validation" / "llama-cpp.md").read_text("utf-8")


def test_held_out_rates() -> None:
    rates = recorded_rates("holdout")
    for kind, bar in (("generation", 0.12), ("prompts", 0.15)):
        own = [one for one in rates if one.generation == (kind == "generation")]
        assert median(abs(one.error) for one in own) <= bar
        assert 0.7 <= sum(one.inside for one in own) / len(own) <= 0.9
        assert _line(f"{kind}, holdout", own) in PAGE, "run python -m validation"
        times = {
            (*one.compared[:3], one.machine, True, round(one.predicted / one.measured, 3)) for one in own
        }
        assert times <= {(*row[:-1], ratio) for row in calibration_errors().rows for ratio in row.ratios}


def test_fewer_experts_on_the_cpu_are_faster_in_the_measured_order() -> None:
    """Generation of Qwen3-30B-A3B and gpt-oss-20b by ``-ncmoe``: the best is the least."""
    rates = [one for one in recorded_rates("holdout") if one.generation]
    for model in ("qwen3-30b-a3b-q4_k_m", "gpt-oss-20b-mxfp4"):
        own = [
            one
            for one in rates
            if one.name.startswith(f"{model} -ngl 99 -ncmoe") and len(one.name.split()) == 5
        ]
        assert len({one.name for one in own}) > 1
        best = [max(own, key=key).name for key in (lambda one: one.measured, lambda one: one.predicted)]
        assert best[0] == best[1]


@pytest.mark.parametrize(("part", "most"), [("fit", 0), ("holdout", 2)])
def test_placements_by_fit(part: str, most: int) -> None:
    """Layers and tensors are those that ``--fit`` chose, but for two: one has room for what does not fit by
    its graph's buffers, the other not."""
    placed = list(placements(part))
    equal = [one for one in placed if one.chosen == one.predicted]
    assert len(placed) - len(equal) <= most
    for one in equal:
        for found, reported in zip(one.found, one.reported, strict=True):
            assert found.model == pytest.approx(reported.model, rel=0.03, abs=1)
            assert found.context == pytest.approx(reported.context, rel=0.03, abs=1)
        total, told = sum(one.found[0]), sum(one.reported[0])
        assert total == pytest.approx(told, rel=0.03)


@pytest.mark.parametrize(("part", "number"), [("fit", 16), ("holdout", 7)])
def test_placements_on_two_gpus_by_fit(part: str, number: int) -> None:
    """Layers, and the tensors of the one that overflows to the next GPU, are those that ``--fit`` chose."""
    placed = list(divided_placements(part))
    assert len(placed) == number
    for one in placed:
        assert one.chosen == one.predicted, one.name
        for found, reported in zip(one.found, one.reported, strict=True):
            assert found.model == pytest.approx(reported.model, rel=0.03, abs=1)
            assert found.context == pytest.approx(reported.context, rel=0.03, abs=1)
            assert sum(found) == pytest.approx(sum(reported), rel=0.03)


SINGLE = {
    name: (float(measured), float(predicted))
    for name, measured, predicted in re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| [^|]+% \| (?:yes|no) \|$", PAGE, re.MULTILINE
    )
}
"""Published rates on the page with their predictions."""


def test_published_rates() -> None:
    rows = csv.DictReader(_PUBLISHED.read_text("utf-8").splitlines())
    groups = {row["id"]: row["group"] for row in rows}
    errors: dict[str, list[float]] = {}
    for name, (measured, predicted) in SINGLE.items():
        errors.setdefault(groups[name], []).append(abs(predicted / measured - 1))
    assert len(errors["generation"]) == 19
    assert median(errors["generation"]) <= 0.16
    assert sorted(errors["generation"])[-2] <= 0.35  # Gemma-2-9B is 44 % too fast
    assert median(errors["prompts"]) <= 0.20
    assert max(errors["prompts"]) <= 0.50


def test_the_page_has_what_is_predicted() -> None:
    """Every fourth rate."""
    rates = [one for one in published_rates(every=4) if one.part in _ABSOLUTE]
    assert len(rates) >= 8
    for one in rates:
        assert SINGLE[one.name] == (float(f"{one.measured:g}"), float(f"{one.predicted:.1f}")), one.name


def test_page_faults_take_as_long_as_recorded() -> None:
    """Dense models read all anew, experts what is missing and what Linux reads around it."""
    rates = {one.name: one for part in ("fit", "holdout") for one in faulting_rates(part)}
    short = {name: one for name, one in rates.items() if one.measured < 10}
    dense = [one for name, one in short.items() if name.startswith("llama")]
    assert len(rates) == 13
    assert sorted(one.name for one in dense) == [
        "llama-3.1-8b-q4_k_m -ngl 0 4",
        "llama-3.1-8b-q4_k_m -ngl 16 2",
    ]
    assert all(abs(one.error) < 0.25 for one in dense)
    experts = [one for one in short.values() if one not in dense]
    settling = "gpt-oss-20b-mxfp4 -ngl 99 -ncmoe 99 10"
    assert [one.name for one in experts if not one.inside] == [settling], "has room, but not for the file"
    assert all(1 / 1.5 < one.predicted / one.measured < 1.5 for one in experts if one.name != settling)
    others = faulting_rates("two H200, own profile")
    assert len(others) == 7
    too_slow = "qwen3-30b-a3b-q4_k_m -ngl 99 -ncmoe 99 12, 8192 KiB"
    assert [one.name for one in others if not one.inside] == [too_slow], "the rule reads more than was read"
    assert all(-0.45 < one.error < 0.4 for one in others), "docs/measurements/llama-cpp.md"
