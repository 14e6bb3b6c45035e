"""Recorded runs of llama.cpp on one H100, and published rates: errors within the stated bars."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import simoffload as so
from validation.llama_cpp import (
    _ABSOLUTE,
    _PUBLISHED,
    _line,
    placements,
    published_rates,
    recorded_rates,
)

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "VALIDATION.md").read_text("utf-8")


def test_held_out_rates() -> None:
    rates = recorded_rates("holdout")
    for kind, bar in (("generation", 0.12), ("prompts", 0.15)):
        own = [one for one in rates if one.generation == (kind == "generation")]
        assert median(abs(one.error) for one in own) <= bar
        assert 0.7 <= sum(one.inside for one in own) / len(own) <= 0.9
        assert _line(f"{kind}, holdout", own) in PAGE, "run python -m validation"


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
    assert median(errors["generation"]) <= 0.12
    assert sorted(errors["generation"])[-2] <= 0.35  # Gemma-2-9B is 36 % too fast
    assert median(errors["prompts"]) <= 0.20
    assert max(errors["prompts"]) <= 0.50


def test_the_page_has_what_is_predicted() -> None:
    """Every fourth rate."""
    rates = [one for one in published_rates(every=4) if one.part in _ABSOLUTE]
    assert len(rates) >= 8
    for one in rates:
        assert SINGLE[one.name] == (float(f"{one.measured:g}"), float(f"{one.predicted:.1f}")), one.name


@pytest.mark.parametrize(
    ("model", "limit", "measured"), [("llama-3.1-8b", 4, 2.494), ("qwen3-30b-a3b", 16, 1.003)]
)
def test_page_faults_take_as_long_as_recorded(
    model: str, limit: int, measured: float, tmp_path: Path
) -> None:
    """In view when the rule was written; the rate of faults is a microbenchmark of the machine."""
    machine = "{kind: platform, id: vm, name: a VM, base: h100-1gpu-vm, drives: [samsung-980-pro-2tb]}"
    (tmp_path / "vm.yaml").write_text(machine)
    (tmp_path / "run.yaml").write_text(
        f"name: run\nmodel: {{name: {model}, quantization: q4_k_m}}\nplatform: vm.yaml\n"
        "workload: {batch_size: 1, prompt_length: 4, output_length: 4}\n"
        "strategy: {kind: llama_cpp, gpu_layers: 0, op_offload: false, threads: 16}\n"
    )
    kept = so.load_scenario(tmp_path / "run.yaml").plan().machine.host.reserved_bytes
    room = f'profiles."host/h100-1gpu-vm-host".memory_capacity={kept + (limit << 30)} B'
    result: Any = so.simulate(so.load_scenario(tmp_path / "run.yaml", overrides=[room]))
    assert result.tpot_s == pytest.approx(measured, rel=0.25)
    records = json.loads((ROOT / "docs/measurements/h100-2026-11-28/llama-cpp-faults.json").read_text())
    (run,) = [
        one for one in records if one.get("name", "").startswith(model) and f"limit {limit} " in one["part"]
    ]
    times = [one / 4e9 for one in run["tests"][0]["samples_ns"]]
    assert sum(times) / len(times) == pytest.approx(measured, rel=0.01)
