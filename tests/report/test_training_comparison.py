"""Training beside training, and apart from inference."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

import pytest

from simoffload.planning.compare import Comparison
from simoffload.report.comparison import exact_name, groups, keys
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult
from tests.report.conftest import compare_text

Make = Callable[..., TrainingResult]
MakeAny = Callable[..., SimulationResult]

COMPARISON = """\
llama-2-7b · bfloat16 · batch 4 × 4 GPUs × accumulation 4 · 2,048 tokens · dgx-a100
Verdict: dram+dram is fastest: 21 s per step (20.3 to 24.8 s), hbm+raid takes 1.9× as long (1.51 to
  2.4); raid+raid does not fit.

Comparison
  raid+raid does not fit: raid needs 100 GB in all, has 90 GB; use more drives
  raid write is limited by raid
  host to GPU is limited by gpu.pcie
                                                                           step vs
  weights  optimizer  step  forward  backward  opt. step  tokens/s        hbm+raid  bottleneck
  hbm      raid       40 s      8 s      13 s       19 s     3,277              1×  raid write 24 %
  dram     dram       21 s      8 s      13 s        0 s     6,242          0.525×  host to GPU 45 %
  raid     raid                                                                     does not fit
  80 % interval
  weights  optimizer            step         forward        backward       opt. step        tokens/s
  hbm      raid         28.3 to 47 s  7.72 to 9.46 s  11.6 to 15.7 s  13.4 to 22.3 s  2,791 to 4,632
  dram     dram       20.3 to 24.8 s  7.72 to 9.46 s  11.6 to 15.7 s                  5,276 to 6,468
  step_s = forward_s + backward_s + optimizer_s: one optimizer step
  forward_s = forward passes of all micro-steps of a step
  backward_s = backward passes of all micro-steps, with recomputation and reduction of gradients
  optimizer_s = from the end of the last backward pass to the end of the step
  tokens_per_s = batch_size x sequence_length x gradient_accumulation_steps x replicas / step_s
  ratio: time per step over that of the baseline

Inputs and their origin
  numbers from profiles: 1 measured, 1 spec, 1 estimate
"""


@pytest.fixture
def without_update(make_training: Make) -> Make:
    """Forward and backward alone: 21 s."""
    return lambda **changes: make_training(phases=make_training().phases[:3], **changes)


def test_a_comparison_in_full(make_training: Make, without_update: Make, make_training_refusal: Make) -> None:
    results = [
        make_training(),
        without_update(target="dram", optimizer_target="dram"),
        make_training_refusal(target="raid"),
    ]
    assert compare_text(results) == COMPARISON


def test_a_long_baseline_is_not_in_the_head(make_training: Make, without_update: Make) -> None:
    long = make_training(target="ai400x2", optimizer_target="ai400x2")
    text = compare_text([long, without_update(optimizer_target="dram")])
    assert re.search(r"tokens/s +step ratio  bottleneck\n", text)


def test_kinds_have_tables_of_their_own(make_training: Make, make_result: MakeAny) -> None:
    results = [make_training(), make_result(model="llama-2-7b"), make_training(target="dram")]
    text = compare_text(results)
    _, first, second, *_ = text.split("\n\n")
    assert first.startswith("Comparison: training\n")
    assert "opt. step" in first
    assert "TTFT" not in first
    assert second.startswith("Comparison: inference\n")
    assert "TTFT" in second
    assert "opt. step" not in second
    found = groups(results)
    assert [(group.kind, group.title, len(group.rows)) for group in found] == [
        ("training", "llama-2-7b, training", 2),
        ("inference", "llama-2-7b, inference", 1),
    ]
    assert [group.baseline for group in found] == ["hbm+raid", "raid"], "each kind has its own"


def test_labels_say_what_differs(make_training: Make) -> None:
    def labels(*places: tuple[str, str, str]) -> list[str]:
        (group,) = groups(
            [make_training(name=n, target=weights, optimizer_target=states) for n, weights, states in places]
        )
        return [row.label for row in group.rows]

    assert labels(("x", "hbm", "raid"), ("x", "dram", "raid")) == ["hbm+raid", "dram+raid"]
    assert labels(("x", "hbm", "raid"), ("x", "hbm", "dram")) == ["hbm+raid", "hbm+dram"]
    assert labels(("x", "hbm", "raid"), ("x", "hbm", "dram"), ("x", "raid", "raid")) == [
        "hbm+raid",
        "hbm+dram",
        "raid+raid",
    ]
    assert labels(("x", "hbm", "raid"), ("y", "hbm", "raid")) == ["x", "y"]


def test_the_scenario_has_a_column_where_it_is_needed(make_training: Make) -> None:
    def columns(*names: str) -> tuple:
        (group,) = groups([make_training(name=name) for name in names])
        return keys(group)

    assert columns("x") == (("weights", "optimizer"), (("hbm", "raid"),))
    assert columns("x", "y") == (
        ("scenario", "weights", "optimizer"),
        (("x", "hbm", "raid"), ("y", "hbm", "raid")),
    )
    assert columns("x", "x")[1][0][0] == "x, hbm+raid (1)"


def test_the_baseline_may_name_both_places(make_training: Make, without_update: Make) -> None:
    results = [make_training(), without_update(optimizer_target="dram")]
    assert [exact_name(result) for result in results] == ["tuning@hbm+raid", "tuning@hbm+dram"]
    (group,) = groups(results, baseline="tuning@hbm+dram")
    assert [row.ratio for row in group.rows] == [pytest.approx(40 / 21), 1.0]


def test_ratios_stay_within_a_kind(make_training: Make, make_result: MakeAny, without_update: Make) -> None:
    comparison = Comparison(
        {
            "infer": make_result(model="llama-2-7b"),
            "train": make_training(),
            "fast": without_update(optimizer_target="dram"),
        }
    )
    assert [comparison.baseline_of(label) for label in comparison.results] == ["infer", "train", "train"]
    assert comparison.ratio("fast") == pytest.approx(21 / 40)
    assert comparison.ratio("infer") == 1


def test_a_frame_holds_both_kinds(make_training: Make, make_result: MakeAny) -> None:
    frame = Comparison({"infer": make_result(), "train": make_training()}).to_frame()
    assert list(frame["workload"]) == ["inference", "training"]
    assert frame.loc["train", "optimizer_target"] == "raid"
    assert frame.loc["train", "step_s"] == 40
    assert frame.loc["train", "tflops_per_gpu"] == pytest.approx(75)
    assert frame.loc["infer", "ttft_s"] == 2.5
    assert math.isnan(frame.loc["infer", "step_s"])
    assert math.isnan(frame.loc["train", "ttft_s"])
    assert "workload" not in Comparison({"infer": make_result()}).to_frame()


def test_the_frame_of_a_step_adds_up(make_training: Make) -> None:
    frame = make_training().to_frame()
    assert list(frame.columns[:3]) == ["phase", "times", "pass"]
    spent = (frame["times"] * frame["exposed_s"]).groupby(frame["phase"]).sum()
    assert spent.to_dict() == pytest.approx({"forward": 8, "backward": 13, "optimizer": 19})


def test_json_holds_all_that_is_told(make_training: Make) -> None:
    data = json.loads(json.dumps(make_training().to_dict(), allow_nan=False))
    assert data["optimizer_target"] == "raid"
    assert data["workload"]["gradient_accumulation_steps"] == 4
    assert data["metrics"].keys() == TrainingResult.declared.keys()
    assert data["metrics"]["per_token_s"] == pytest.approx(40 / 131_072)
    assert [(one["name"], one["times"], one["time_s"]) for one in data["phases"]] == [
        ("forward", 4, pytest.approx(8)),
        ("backward", 3, pytest.approx(9)),
        ("backward", 1, pytest.approx(4)),
        ("optimizer", 1, pytest.approx(19)),
    ]
    assert data["storage_per_step"] == [{"tier": "raid", "read_bytes": 84e9, "written_bytes": 168e9}]
    assert [moment["stage"] for moment in data["memory"]] == [
        "initialisation",
        "forward and backward",
        "optimizer step",
    ]
    assert data["memory"][2]["tiers"][2] == {
        "tier": "raid",
        "needed_bytes": 100e9,
        "fits": True,
        "terms": [{"name": "optimizer states", "bytes": 100e9}],
    }
    assert data["capacity"][0]["stage"] == "forward and backward"
    assert data["step"]["pass"] == "step"
    assert data["step"]["bottleneck"] == "raid write"


@pytest.mark.parametrize("width", [100, 140])
def test_a_table_keeps_to_the_width(make_training: Make, without_update: Make, width: int) -> None:
    results = [make_training(target="memory-array"), without_update(target="nfs-over-ethernet")]
    text = compare_text(results, width=width)
    assert max(map(len, text.splitlines())) <= max(width, 110), "columns of numbers stay whole"
