"""Scenarios of training on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

SCENARIO = """\
name: tuning
model: llama-2-7b
platform: dgx-a100
workload: {kind: training, batch_size: 1, sequence_length: 512, gradient_accumulation_steps: 3}
strategy:
  kind: deepspeed
  ranks: 2
  ds_config:
    zero_optimization: {stage: 3, offload_optimizer: {device: cpu, pin_memory: true}}
"""


@pytest.fixture(autouse=True)
def _scenario(program, tmp_path: Path) -> None:  # noqa: ARG001
    (tmp_path / "tuning.yaml").write_text(SCENARIO)


def test_a_step_is_told(program) -> None:
    answer = program("run", "tuning.yaml", "--set", "model=opt-125m", "--explain")
    assert answer.status == 0
    lines = answer.out.splitlines()
    assert lines[0] == "opt-125m · float16 · batch 1 × 2 GPUs × accumulation 3 · 512 tokens · dgx-a100"
    assert "with its weights in HBM and its optimizer in DRAM: " in " ".join(answer.out.split())
    assert [next(line for line in lines if line.startswith(name)) for name in ("Speed", "Phases", "Where")]


def test_metrics_agree_with_each_other(program) -> None:
    data = json.loads(program("run", "tuning.yaml", "--json").out)
    metrics = data["metrics"]
    assert metrics["step_s"] == pytest.approx(
        metrics["forward_s"] + metrics["backward_s"] + metrics["optimizer_s"]
    )
    assert metrics["tokens_per_s"] * metrics["step_s"] == pytest.approx(1 * 512 * 3 * 2)
    assert sum(one["time_s"] for one in data["phases"]) == pytest.approx(metrics["step_s"])
    causes = sum(
        one["times"] * share["exposed_s"]
        for one, done in zip(data["phases"], data["passes"], strict=True)
        for share in done["time_by_cause"]
    )
    assert causes == pytest.approx(metrics["step_s"])


def test_the_trace_is_of_the_longest_part(program, tmp_path: Path) -> None:
    answer = program("run", "tuning.yaml", "--output-dir", "out", "--trace")
    data = json.loads((tmp_path / "out/result.json").read_text())
    longest = max(data["phases"], key=lambda one: one["time_s"])["pass"]
    trace = json.loads((tmp_path / "out/trace.json").read_text())
    assert trace["otherData"]["pass"] == longest
    assert f'trace.json shows "{longest}", the longest part of the step' in answer.err
    assert f"({longest}, rank 0)" in (tmp_path / "out/report.html").read_text()


def test_inference_is_compared_apart(program) -> None:
    answer = program("compare", "tuning.yaml", "small.yaml", "--json")
    rows = {row["label"]: row for row in json.loads(answer.out)["compared"]}
    assert [rows[label]["baseline"] for label in ("tuning", "small")] == ["tuning", "small"]
    text = program("compare", "tuning.yaml", "small.yaml").out
    assert [text.count(head) for head in ("forward  backward", "TTFT")] == [1, 2]


def test_a_baseline_is_found_among_optimizers(program, tmp_path: Path) -> None:
    (tmp_path / "raid.yaml").write_text(SCENARIO.replace("device: cpu", "device: nvme"))
    changed = ("--set", "name=tuning")
    answer = program("compare", "tuning.yaml", "raid.yaml", *changed, "--baseline", "tuning (raid.yaml)")
    assert answer.status == 0, answer.err
    rows = [line.split() for line in answer.out.splitlines() if re.match("  hbm +(?:raid|dram) +.*×", line)]
    assert [row[1] for row in rows if "1×" in row] == ["raid"]
    assert len(rows) == 2


@pytest.mark.parametrize("command", ["run", "advise"])
def test_a_refused_target_names_those_that_can_be_typed_instead(program, command: str) -> None:
    """The optimizer alone on the drives is the likeliest meaning, and is what ``compare`` calls dram+nvme."""
    refused = program(command, "xinnor/llama-1b", "--on", "nvme")
    assert refused.status == 2
    assert refused.err.endswith("; instead of --on nvme it can be --on dram+nvme or hbm+nvme\n")
    assert program("run", "xinnor/llama-1b", "--on", "dram+nvme").status == 0
