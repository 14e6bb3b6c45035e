"""``simoffload reach`` on the command line: answers, their status, and one message for each bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Program

BATCH = ("--by", "workload.batch_size")
DRIVE = "profiles.samsung-pm1733-3.84tb.read"


def test_a_value_is_told_with_what_it_gives(program: Program) -> None:
    answer = program("reach", "small.yaml", "--slo", "tokens_per_s=100", *BATCH)
    assert answer.status == 0, answer.err
    text = " ".join(answer.out.split())
    assert "Verdict: tokens_per_s ≥ 100 with a batch size " in text
    assert "; now 2." in text
    assert "bottleneck host thread" in text
    assert "80 % interval" in text
    assert "simoffload run small.yaml --set workload.batch_size=" in answer.out


def test_what_no_value_reaches_has_status_3(program: Program) -> None:
    answer = program("reach", "small.yaml", "--slo", "tpot=1us", *BATCH)
    assert answer.status == 3
    assert "Verdict: no value of workload.batch_size from 1 to 2,000 gives tpot ≤ 1 us; nearest" in " ".join(
        answer.out.split()
    )
    assert "What to type" not in answer.out


def test_json_and_folder_have_the_same(program: Program, tmp_path: Path) -> None:
    command = ("reach", "small.yaml", "--slo", "tpot=1s", "--slo", "tokens_per_s=1", "--by", DRIVE)
    answer = program(*command, "--json", "--output-dir", "out")
    assert answer.status == 0, answer.err
    data = json.loads(answer.out)
    assert data == json.loads((tmp_path / "out/result.json").read_text())
    assert data["slo"] == ["tpot ≤ 1 s", "tokens_per_s ≥ 1"]
    assert data["by"] == 'profiles."drive/samsung-pm1733-3.84tb".read'
    page = (tmp_path / "out/report.html").read_text()
    assert "tpot over" in page
    assert "Values that were tried" in (tmp_path / "out/report.md").read_text()


def test_set_comes_first(program: Program) -> None:
    answer = program("reach", "small.yaml", "--slo", "tpot=1h", *BATCH, "--set", "workload.output_length=2")
    assert answer.status == 0, answer.err
    assert "run small.yaml --set workload.output_length=2 --set workload.batch_size=" in answer.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--by", "strategy.weights"),
            '--by: strategy.weights: is not a number but "raid"; write a path such as',
        ),
        (
            ("--by", "workload"),
            "contains several numbers; name one of workload.batch_size, workload.prompt_length, workload.out",
        ),
        (
            ("--by", "workload.batchsize"),
            '--by: workload.batchsize: the scenario has no such key; did you mean "batch_size"?',
        ),
        (("--by", "batch_size"), 'the scenario has no such key; did you mean "workload.batch_size"?'),
        (("--by", "nowhere"), "--by: nowhere: the scenario has no such key; write a path such as"),
        (("--by", "a[[b"), "--by: a[[b: is not the path of a key; write a path such as"),
        (("--by", "profiles.foo.read"), "this platform uses no profile of that name (has: host/dgx-a100"),
        (
            ("--by", "profiles.samsung-pm1733-3.84tb.raed"),
            'drive/samsung-pm1733-3.84tb has no such number; did you mean "read"?',
        ),
        (("--by", "profiles.samsung-pm1733-3.84tb"), "has no such number; it has capacity, read, write"),
        (("--by", "engine.max_events"), "is an option of the simulator, which changes no answer"),
        (("--by", "checkpoint"), "--by: checkpoint: is not set, so there is no value to start from"),
        (("--by", DRIVE, "--within", "1..5"), '"1" has no unit; write e.g. "1 GB/s" (bytes)'),
        (("--by", DRIVE, "--within", "1 GB..5 GB"), '"1 GB" is a size, not a rate; did you mean "1 GB/s"?'),
        ((*BATCH, "--within", "1 GB/s..5 GB/s"), '--within: workload.batch_size: "1 GB/s" is not a number'),
        ((*BATCH, "--within", "1.5..5"), 'must be a whole number, got "1.5"'),
        ((*BATCH, "--within", "8..5"), "--within: 8..5: MIN must be below MAX; write MIN..MAX"),
        ((*BATCH, "--within", "8"), "--within: 8: is not a range; write MIN..MAX, such as 1..64"),
        ((*BATCH, "--within", "1..nan"), "must be a whole number"),
        ((*BATCH, "--slo", "tpot=5"), '--slo: tpot=5: "5" has no unit; write e.g. tpot=200ms'),
        ((*BATCH, "--slo", "tpot=5GB"), '"5GB" is a size, not a time'),
        ((*BATCH, "--slo", "tpto=5s"), 'unknown metric "tpto"; did you mean "tpot"?'),
        (
            (*BATCH, "--slo", "step=5s"),
            "step is no limit of this kind of work; it has ttft, prompt_tokens_per_s, tpot, tokens_per_s, ",
        ),
        (
            (*BATCH, "--set", "workload.batch_size=4"),
            "--by: workload.batch_size: is also set by --set workload.batch_size; give one of them",
        ),
        (
            ("--by", DRIVE, "--set", 'profiles."drive/samsung-pm1733-3.84tb".read=5 GB/s'),
            "is also set by --set profiles.",
        ),
    ],
)
def test_bad_input_is_one_message(options: tuple[str, ...], message: str, program: Program) -> None:
    answer = program("reach", "small.yaml", "--slo", "tpot=1s", *options)
    assert answer.status == 2
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert line.startswith("error: --")
    assert message in line


@pytest.mark.parametrize(("option", "missing"), [("--slo", BATCH), ("--by", ("--slo", "tpot=1s"))])
def test_both_options_are_needed(option: str, missing: tuple[str, ...], program: Program) -> None:
    answer = program("reach", "small.yaml", *missing)
    assert answer.status == 2
    assert f"the following arguments are required: {option}" in answer.err


@pytest.mark.parametrize("again", [("--by", "nodes"), ("--within", "1..4", "--within", "2..8")])
def test_one_number_is_varied(again: tuple[str, ...], program: Program) -> None:
    """The first of two is not forgotten in silence."""
    answer = program("reach", "small.yaml", "--slo", "tpot=1s", *BATCH, *again)
    assert (answer.status, answer.out) == (2, "")
    assert f"{again[0]} is given twice; reach varies one number" in answer.err


def test_an_unset_number_starts_from_the_range(program: Program) -> None:
    command = ("reach", "vllm/llama-3-70b", "--slo", "ttft=1s", "--by", "strategy.max_num_batched_tokens")
    answer = program(*command)
    assert answer.status == 2
    assert "is not set, so there is no value to start from; give a range: --within 1..64" in answer.err
    assert program(*command, "--within", "512..2048").status == 0


def test_a_value_that_reaches_a_limit_does_not_count(program: Program) -> None:
    """Without an answer that is a failure, as what was not tried might keep the service level."""
    answer = program("reach", "small.yaml", "--slo", "tpot=1us", *BATCH, "--max-events", "1000")
    assert answer.status == 1
    assert "not every value was tried: " in answer.err
