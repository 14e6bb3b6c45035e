"""Recorded runs of llama.cpp on one H100, and published rates: errors within the stated bars."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from validation.llama_cpp import placements, published_rates, recorded_rates

pytestmark = pytest.mark.slow


def test_held_out_rates() -> None:
    rates = recorded_rates("holdout")
    for generation, bar in ((True, 0.12), (False, 0.15)):
        own = [one for one in rates if one.generation == generation]
        assert median(abs(one.error) for one in own) <= bar
        assert 0.7 <= sum(one.inside for one in own) / len(own) <= 0.9


def test_fewer_experts_on_the_cpu_are_faster_in_the_measured_order() -> None:
    """Generation of Qwen3-30B-A3B and gpt-oss-20b by ``-ncmoe``: the best is the least."""
    rates = [one for part in ("fit", "holdout") for one in recorded_rates(part) if one.generation]
    for model in ("qwen3-30b-a3b-q4_k_m", "gpt-oss-20b-mxfp4"):
        own = [
            one
            for one in rates
            if one.name.startswith(f"{model} -ngl 99 -ncmoe") and len(one.name.split()) == 5
        ]
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


def test_published_rates() -> None:
    rates = published_rates()
    generation = [abs(one.error) for one in rates if one.part == "generation"]
    prompts = [abs(one.error) for one in rates if one.part == "prompts"]
    assert len(generation) == 19
    assert median(generation) <= 0.12
    assert sorted(generation)[-2] <= 0.35  # Gemma-2-9B is 36 % too fast
    assert median(prompts) <= 0.20
    assert max(prompts) <= 0.50


def test_the_tables_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "VALIDATION.md").read_text("utf-8")
    for one in published_rates():
        if one.part in ("generation", "prompts"):
            assert f"| {one.name} | {one.measured:g} | {one.predicted:.1f} |" in page
