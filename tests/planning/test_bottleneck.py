"""What holds a scenario back is said alike by a run, a comparison, a sweep and advice."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from simoffload.documents import parse_json
from simoffload.extensions.sweep.definition import define_sweep, find_points
from simoffload.extensions.sweep.run import run_sweep
from simoffload.planning.advise import advise
from simoffload.planning.compare import compare_scenarios
from simoffload.report.sections.advice import advice_verdict
from simoffload.scenario import resolve
from simoffload.simulation import simulate
from tests.report.conftest import compare_text, result_text

SLOW_ADAPTERS = {"profiles": {"hdr200": {"achieved": "500 MB/s"}}}
INFERENCE = {"batch_size": 2, "prompt_length": 8, "output_length": 3}
TRAINING = {"kind": "training", "batch_size": 1, "sequence_length": 128}
CASES = {
    "the filesystem's adapters": (INFERENCE, {"ranks": 2, "weights": "ai400x2"}, SLOW_ADAPTERS),
    "the filesystem": (INFERENCE, {"ranks": 2, "weights": "ai400x2"}, {}),
    "drives": (INFERENCE, {"ranks": 2, "weights": "raid"}, {}),
    "copies": (INFERENCE, {"ranks": 2, "weights": "dram"}, {}),
    "kernels or the host": (INFERENCE, {"kind": "transformers", "ranks": 2}, {}),
    "training": (TRAINING, {"ranks": 2, "weights": "raid", "optimizer": "raid"}, SLOW_ADAPTERS),
    "checkpoints": (
        {"kind": "checkpoint"},
        {"kind": "checkpoint", "ranks": 2, "tier": "ai400x2"},
        SLOW_ADAPTERS,
    ),
}


def document(case: str):
    workload, strategy, more = CASES[case]
    strategy = dict(strategy)
    if "weights" in strategy:
        sections = {"offload_param": {"buffer_size": 200_000_000, "buffer_count": 8}}
        strategy["ds_config"] = {"zero_optimization": sections}
    data = {"name": case, "model": "bloom-560m", "platform": "dgx-a100", "workload": workload}
    return parse_json(json.dumps({**data, "strategy": strategy, **more}), name="case.json")


@pytest.mark.parametrize("case", CASES)
def test_the_same_bottleneck_everywhere(case: str, tmp_path: Path) -> None:
    """The cause, and what limits it, as ``run --json`` has them."""
    loaded = resolve(document(case))
    result = simulate(loaded)
    reported = result.to_dict()["step"]["bottleneck"], result.to_dict()["step"]["limit"]
    row = compare_scenarios({case: loaded}).to_frame().loc[case]
    assert (row["bottleneck"], row["limit"]) == reported
    sweep = define_sweep(document(case), axes=["engine.decode_extrapolation=on,off"])
    run_sweep(sweep, find_points(sweep), [tmp_path / "r.csv"], workers=1)
    with (tmp_path / "r.csv").open(newline="") as file:
        assert {(point["bottleneck"], point["limit"]) for point in csv.DictReader(file)} == {reported}


def test_adapters_that_hold_a_filesystem_back_are_named_by_all() -> None:
    loaded = resolve(document("the filesystem's adapters"))
    result = simulate(loaded)
    assert (result.bottleneck, result.limit) == ("ai400x2 read", "ib0 in")
    assert ", limited by ib0 in decode 1: " in " ".join(result_text(result).split())
    assert "\n  ai400x2 read is limited by ib0 in\n" in compare_text([result])
    assert "bottleneck: ai400x2 read, limited by ib0 in; " in advice_verdict(advise(loaded)).in_full
    faster = resolve(document("the filesystem"))
    assert simulate(faster).limit != "ib0 in"
