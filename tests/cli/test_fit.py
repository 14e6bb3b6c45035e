"""``simoffload fit``: changes, machines, the largest."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import simoffload.planning.sizing as planning_fit
from simoffload.planning.sizing import Largest
from simoffload.scenario import LoadedScenario, read_scenario

IN_HBM = ("ddn/bloom-176b", "--set", "strategy.weights=gpu")


def changes_of(text: str) -> list[str]:
    """What ``--set`` would be given, line by line."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line.startswith("--set")]


@pytest.mark.parametrize("command", ["fit", "run --explain"])
def test_what_does_not_fit_comes_with_changes_to_copy(program, command: str) -> None:
    answer = program(*command.split(), *IN_HBM)
    assert answer.status == 3
    rendered = changes_of(answer.out)
    assert rendered[0] == "--set strategy.weights=dram"
    assert "--set nodes=3 --set strategy.ranks=24" in rendered
    with_other_answers = [line for line in rendered if "quantization" in line]
    assert any("vllm" in line for line in rendered)
    assert with_other_answers
    assert rendered[-len(with_other_answers) :] == with_other_answers, "they come last"
    for line in rendered:
        assert program("fit", *IN_HBM, *shlex.split(line)).status == 0


def test_it_writes_a_page(program, tmp_path: Path) -> None:
    assert program("fit", *IN_HBM, "--output-dir", str(tmp_path / "one")).status == 3
    page = re.sub("<[^>]*>", "", (tmp_path / "one" / "report.html").read_text())
    assert "bloom-176b does not fit on dgx-a100" in page
    assert "beyond capacity" in page
    assert "--set strategy.weights=dram" in page
    several = program("fit", "ddn/bloom-7b1", "--on", "dram,raid", "--output-dir", str(tmp_path / "more"))
    assert several.out.splitlines()[-1].startswith("wrote ")
    assert "dram and raid fit." in (tmp_path / "more" / "report.md").read_text()


@pytest.mark.parametrize("question", ["--machines", "--largest", "--best-batch"])
def test_every_question_has_a_sentence(program, tmp_path: Path, question: str) -> None:
    answer = program("fit", "xinnor/llama-1b", question, "--output-dir", str(tmp_path / "out"))
    assert answer.status == 0
    (found,) = json.loads((tmp_path / "out" / "report.json").read_text())["summary"]
    assert "llama-3.1-8b" in found


def test_what_fits_has_none(program) -> None:
    answer = program("fit", "ddn/bloom-176b", "--json")
    assert json.loads(answer.out)["changes"] is None
    assert changes_of(program("fit", "ddn/bloom-176b").out) == []


def test_profiles_with_dots_and_values_with_spaces_can_be_copied(program) -> None:
    small = (
        "ddn/bloom-mod-2",
        "--set",
        "strategy.weights=raid",
        "--set",
        "profiles.dgx-a100-1tib.memory_capacity=256 GiB",
    )
    answer = program("fit", *small)
    both, *free = changes_of(answer.out)
    assert free, "what costs nothing is told beside"
    memory = """--set 'profiles.dgx-a100-1tib.memory_capacity="320 GiB"'"""
    drives = """--set 'profiles."raid/raid0-4x-pm1733-3.84tb".count=13'"""
    assert both == f"{memory} {drives}", "on one line, however long"
    assert program("fit", *small, *shlex.split(both)).status == 0


def test_changes_reach_into_a_ds_config_file(program, tmp_path) -> None:
    text = (tmp_path / "small.yaml").read_text().partition("  ds_config:")[0]
    (tmp_path / "mine.yaml").write_text(f"{text}  ds_config: ds.json\n")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"offload_param": {"buffer_size": 6e10}}}')
    rendered = changes_of(program("fit", "mine.yaml").out)
    buffers = "--set strategy.ds_config.zero_optimization.offload_param.buffer_size=30000000000"
    assert buffers in rendered
    assert program("fit", "mine.yaml", *shlex.split(buffers)).status == 0


@pytest.mark.parametrize(
    ("model", "held"),
    [
        ("7b1", (True, True, True, True, True)),
        ("176b", (False, True, True, True, True)),
        ("mod-1", (False, False, True, True, True)),
        ("mod-2", (False, False, False, True, True)),
    ],
)
def test_the_white_papers_matrix_of_models_and_targets(program, model: str, held: tuple[bool, ...]) -> None:
    targets = "gpu,dram,raid,nfs,ai400x2"
    data = json.loads(program("fit", f"ddn/bloom-{model}", "--on", targets, "--json").out)
    assert tuple(row["result"]["fits"] for row in data["compared"]) == held


def test_several_scenarios_are_one_table(program) -> None:
    answer = program("fit", "ddn/bloom-7b1", "ddn/bloom-176b")
    assert answer.status == 0
    assert len(re.findall(r"^  \S+ +\S+ +fits$", answer.out, re.MULTILINE)) == 2


MACHINES = """\
Number of machines needed

dgx-a100, 8 GPUs with 315 GiB of HBM in total
  model        work       by rule  hbm  raid
  bloom-176b   inference        2    3     1
  bloom-mod-2  inference      143  881     4
  bloom-176b   training        11   33     1
"""


def test_machines_of_several_scenarios_are_one_table(program) -> None:
    names = ("ddn/bloom-176b", "ddn/bloom-mod-2", "training/bloom-176b")
    answer = program("fit", *names, "--machines", "--on", "raid")
    assert answer.status == 0
    title, _, table = MACHINES.partition("  model")
    assert answer.out.startswith(title)
    assert f"  model{table}" in answer.out
    words = " ".join(answer.out.split())
    assert "bloom-176b, hbm: fewer machines hold the weights with other answers: 1 machine in fp8" in words
    assert "bloom-mod-2: not simulated, as it has more than 1,000 layers" in words
    assert "bloom-176b training hbm 33 16.2 s [" in words
    assert "rule = machines whose HBM holds the weights" in answer.out


def test_machines_as_json(program) -> None:
    data = json.loads(program("fit", "ddn/bloom-176b", "--machines", "--on", "raid", "--json").out)
    assert data["schema"] == "simoffload/fit/1"
    (needed,) = data["machines"]
    assert needed["by_rule"] == 2
    assert needed["states_bytes"] == 352_494_542_848
    runs = [one.pop("run") for one in needed["counts"]]
    assert needed["counts"] == [
        {"tier": "hbm", "machines": 3, "why": ""},
        {"tier": "raid", "machines": 1, "why": ""},
    ]
    alone = json.loads(program("run", "ddn/bloom-176b", "--on", "raid", "--json").out)
    assert runs[1]["metrics"]["tpot_s"] == alone["metrics"]["tpot_s"]
    assert [one["economics"]["purchase"] for one in runs] == [600_000, 200_000]  # three machines, and one
    assert runs[1]["days_per_billion_tokens"] == pytest.approx(
        1e9 / alone["metrics"]["tokens_per_s"] / 86_400
    )
    assert [(one["format"], one["machines"]) for one in needed["formats"]] == [("fp8", 1), ("int4-g128", 1)]


def test_machines_that_are_counted_have_a_network(program) -> None:
    """A GPU alone names the smallest machine with it, which here has no network: none would be enough."""
    answer = program("fit", "llama-3.1-405b", "--machines", "--gpu", "h100-sxm", "--on", "dram", "--json")
    assert answer.status == 0, answer.err
    (needed,) = json.loads(answer.out)["machines"]
    assert needed["platform"] == "dgx-h100"
    assert {one["tier"]: one["machines"] for one in needed["counts"]} == {"hbm": 2, "dram": 1}


def test_an_unknown_tier_is_a_slip_of_the_option(program) -> None:
    answer = program("fit", "ddn/bloom-7b1", "--machines", "--on", "tape")
    assert answer.status == 2
    assert (
        answer.err
        == 'error: --on: no tier "tape" on platform "dgx-a100" (has: hbm (or gpu), dram (or cpu), raid, nfs, '
        "ai400x2)\n"
    )


def test_the_largest_on_two_targets(program) -> None:
    answer = program("fit", "ddn/bloom-176b", "--largest", "--on", "gpu,raid")
    assert answer.status == 0
    assert answer.out.splitlines()[3:6] == [
        "  model       weights  batch per GPU    context    layers  parameters",
        "  bloom-176b  hbm             16 → –    108 → –   70 → 33         85B",
        "  bloom-176b  raid           16 → 57  108 → 363  70 → 251        623B",
    ]


def test_a_context_beyond_the_models_own_is_warned_of(program) -> None:
    answer = program("fit", "training/gpt-1t", "--largest")
    assert "Warning: opt 128x25600 is designed for a context of at most 2,048 tokens" in answer.out


def test_the_largest_as_json(program) -> None:
    data = json.loads(program("fit", "ddn/bloom-176b", "--largest", "--json").out)
    (held,) = data["largest"]
    assert held["batch_size"] == {"now": 16, "most": 57, "set": ["workload.batch_size=57"]}


@pytest.mark.parametrize("question", ["--machines", "--largest"])
def test_programs_that_compute_on_the_cpu_are_named(program, question: str) -> None:
    """Where a model does not fit the GPUs of a desktop; in text and JSON once."""
    name, text = (
        "serving/llama-3.1-70b",
        "llama.cpp (strategy.kind llama_cpp) computes layers or experts on the CPU",
    )
    found = program("fit", name, question).out
    assert " ".join(found.split()).count(text) == 1
    (one,) = json.loads(program("fit", name, question, "--json").out)[question[2:]]
    assert [text in warning for warning in one["warnings"]] == [True]


@pytest.mark.parametrize("question", ["--machines", "--largest"])
def test_where_nothing_is_enough_the_status_says_so(program, question: str) -> None:
    """A reserve as large as the GPU leaves no room for anything."""
    full = ("--set", "profiles.a100-40g-sxm.reserved=42 GB")
    assert program("fit", "ddn/bloom-7b1", question, *full).status == 3


def test_two_questions_at_once_are_refused(program) -> None:
    answer = program("fit", "ddn/bloom-7b1", "--machines", "--largest")
    assert answer.status == 2
    assert "argument --largest: not allowed with argument --machines" in answer.err


def test_a_scenario_that_reaches_its_limits_stops_no_other(program, tmp_path, monkeypatch) -> None:
    """Each has a clock of its own; where all reach their limits there is no answer."""
    found = planning_fit.largest(read_scenario("small.yaml"))

    def endless(scenario: LoadedScenario) -> Largest:
        while "slow" in scenario.name:
            pass
        return found

    monkeypatch.setattr(planning_fit, "largest", endless)
    text = (tmp_path / "small.yaml").read_text()
    (tmp_path / "slow.yaml").write_text(text.replace("name: small", "name: slow"))
    limit = ("--set", "engine.timeout=1 s")
    answer = program("fit", "slow.yaml", "small.yaml", "--largest", *limit, "--json")
    data = json.loads(answer.out)
    assert answer.status == 0
    assert [one["name"] for one in data["largest"]] == ["small"]
    assert list(data["stopped"]) == ["slow"]
    assert data["stopped"]["slow"].startswith("stopped by engine.timeout (--timeout) after 1 s")
    assert (
        "\nWarning: slow: stopped by engine.timeout"
        in program("fit", "small.yaml", "slow.yaml", "--largest", *limit).out
    )
    assert program("fit", "slow.yaml", "--largest", *limit).status == 1


def test_the_best_batch_by_placement(program) -> None:
    answer = program("fit", "small.yaml", "--best-batch", "--on", "all", "--json")
    assert answer.status == 0, answer.err
    found = json.loads(answer.out)["best_batch"]
    assert [one["target"] for one in found] == ["hbm", "dram", "raid", "nfs", "ai400x2"]
    assert all(one["best"]["metrics"]["tokens_per_s"] for one in found)
    answer = program("fit", "small.yaml", "--best-batch", "--slo", "tpot=1us")
    assert answer.status == 3
    assert "no batch that fits keeps it; nearest: tpot" in " ".join(answer.out.split())


def test_service_levels_are_for_the_best_batch(program) -> None:
    answer = program("fit", "small.yaml", "--slo", "tpot=1s")
    assert answer.status == 2
    assert "--slo needs --best-batch" in answer.err


def test_weights_that_llama_cpp_has_on_the_gpu_are_not_said_to_be_in_host_memory(program) -> None:
    small = program("fit", "qwen3-8b:q4_k_m", "--gpu", "rtx-4090", "--program", "llama_cpp")
    large = program("fit", "gpt-oss-120b", "--gpu", "rtx-4090", "--program", "llama_cpp")
    assert "with its weights in the GPU:" in " ".join(small.out.split())
    assert "with its weights in GPU and host memory:" in " ".join(large.out.split())
