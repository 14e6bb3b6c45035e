"""``simoffload run`` and ``fit``: answers, exit statuses, JSON."""

from __future__ import annotations

import io
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import simoffload as so
from simoffload import limits
from simoffload.cli import answer as cli_answer
from simoffload.cli import planning as cli_planning
from simoffload.planning import advise, explanation
from simoffload.report.first_screen import MOST_LINES, first_screen
from simoffload.report.from_result import result_document
from simoffload.report.markdown import write_markdown
from simoffload.report.terminal import screen_text
from tests.report.conftest import result_text

TOO_LARGE = ("--set", "model=bloom-176b", "--set", "strategy.weights=gpu")


def test_run_prints_the_answer(program) -> None:
    answer = program("run", "small.yaml")
    assert answer.status == 0
    assert "bloom-560m" in answer.out
    assert "raid" in answer.out
    assert "\x1b" not in answer.out
    assert answer.err == ""


@pytest.mark.parametrize(
    "asked",
    [
        ("qwen3-8b", "--gpu", "rtx-4090"),
        ("llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "8"),
        ("llama-3.1-8b", "--gpu", "rtx-3090", "--set", "workload.kind=training"),
        ("ddn/bloom-176b",),
    ],
)
def test_a_first_answer_is_one_screen(program, asked: tuple[str, ...]) -> None:
    answer = program("run", *asked)
    assert answer.status == 0, answer.err
    assert len(answer.out.splitlines()) <= MOST_LINES
    assert max(map(len, answer.out.splitlines())) <= 100


def test_json_is_one_document_with_finite_numbers(program) -> None:
    answer = program("run", "small.yaml", "--json")
    data = json.loads(answer.out, parse_constant=pytest.fail)
    assert answer.status == 0
    assert data["schema"] == "simoffload/result/1"
    assert data["fits"] is True
    assert data["metrics"]["per_token_s"] > 0


def test_json_is_the_same_twice(program) -> None:
    assert program("run", "small.yaml", "--json") == program("run", "small.yaml", "--json")


def screen(scenario: so.LoadedScenario, result: so.SimulationResult) -> str:
    text = screen_text(first_screen(scenario, result))
    assert len(text.splitlines()) <= MOST_LINES
    return text


@pytest.mark.parametrize("overrides", [(), ("model=bloom-176b", "strategy.weights=gpu")])
def test_python_gives_what_the_command_line_gives(program, overrides: tuple[str, ...]) -> None:
    """Where it fits and where it does not: JSON, text and page, without what the command line alone knows."""
    argv = [word for one in overrides for word in ("--set", one)]
    scenario = so.load_scenario("small.yaml", overrides=overrides)
    for command, answer in (("run", so.simulate(scenario)), ("fit", so.fit(scenario))):
        data = json.loads(program(command, "small.yaml", *argv, "--json").out)
        assert data == json.loads(json.dumps(answer.to_dict()))
        printed = program(command, "small.yaml", *argv).out
        assert printed == (result_text(answer) if command == "fit" else screen(scenario, answer))
    line = shlex.join(["simoffload", "run", "small.yaml", *argv, "--output-dir", "out"])
    program(*shlex.split(line)[1:])
    result = so.simulate(scenario, keep_timelines=True)
    so.write_report(result, "report.html", command=line)
    assert Path("report.html").read_text() == Path("out/report.html").read_text()
    write_markdown(result_document(result, command=line), "report.md")
    assert Path("report.md").read_text() == Path("out/report.md").read_text()


def test_json_keeps_warnings_apart(program) -> None:
    answer = program("run", "small.yaml", "--json")
    warnings = json.loads(answer.out)["warnings"]
    assert warnings
    assert answer.err == "".join(f"warning: {warning}\n" for warning in warnings)


def test_a_scenario_by_name(program) -> None:
    assert program("fit", "ddn/bloom-7b1").status == 0


def test_set_replaces_values(program) -> None:
    data = json.loads(program("run", "small.yaml", "--json", "--set", "workload.batch_size=3").out)
    assert data["workload"]["batch_size"] == 3
    assert data["provenance"]["scenario"]["workload"]["batch_size"] == 3


def test_standard_input(program, monkeypatch: pytest.MonkeyPatch) -> None:
    from_file = program("run", "small.yaml", "--json", "--set", "workload.batch_size=3")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("small.yaml").read_bytes())))
    assert program("run", "-", "--json", "--set", "workload.batch_size=3") == from_file


def test_what_does_not_fit_is_an_answer(program) -> None:
    answer = program("run", "small.yaml", *TOO_LARGE)
    assert answer.status == 3
    assert "does not fit" in answer.out
    assert "hbm needs" in answer.out
    assert answer.err == ""


def test_what_does_not_fit_has_no_times(program) -> None:
    answer = program("run", "small.yaml", *TOO_LARGE, "--json")
    data = json.loads(answer.out)
    assert answer.status == 3
    assert data["fits"] is False
    assert data["passes"] == []
    assert set(data["metrics"].values()) == {None}
    assert data["advice"]


def test_every_answer_says_how_sure_it_is(program) -> None:
    assert "\nConfidence\n  80 % interval of the " in program("run", "small.yaml", "--explain").out
    sure = json.loads(program("run", "small.yaml", "--json").out)["confidence"]
    assert sure["known"] is True
    assert 0 < sure["relative_error"] < 0.2
    assert sure["metric"] == "tokens_per_s"
    answer = json.loads(program("run", "small.yaml", "--json").out)
    assert answer["intervals"]["tokens_per_s"] == [sure["p10"], sure["p90"]]
    for name, (low, high) in answer["intervals"].items():
        assert low < answer["metrics"][name] < high
    assert json.loads(program("run", "small.yaml", *TOO_LARGE, "--json").out)["confidence"] is None


def first_answer(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that is called once, and returns the same whenever it is asked again."""
    found: list[object] = []

    def asked(*given: object, **named: object) -> object:
        found[:] = found or [function(*given, **named)]
        return found[0]

    return asked


def test_explain_says_why_in_every_form(program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulations of the second answer would be those of the first: it gets what these found."""
    for module, name in ((explanation, "explain"), (advise, "advise")):
        monkeypatch.setattr(module, name, first_answer(getattr(module, name)))
    answer = program("run", "small.yaml", "--explain", "--output-dir", "out")
    assert answer.status == 0
    titles = ("Storage bandwidth and throughput", "Sensitivity to inputs", "Confidence")
    assert [name for name in titles if f"\n{name}\n" not in answer.out] == []
    data = json.loads(Path("out/result.json").read_text(), parse_constant=pytest.fail)["explanation"]
    assert data["sensitivity"]["rows"][0]["swing"] > 0
    assert data["storage"]["tier"] == "raid"
    assert "Sensitivity to inputs" in Path("out/report.html").read_text()
    result = so.simulate(so.load_scenario("small.yaml"), explain=True, keep_timelines=True)
    assert json.loads(json.dumps(result.to_dict())) == json.loads(Path("out/result.json").read_text())
    assert answer.out.startswith(result_text(result))
    so.write_report(result, "report.html", command="simoffload run small.yaml --explain --output-dir out")
    assert Path("report.html").read_text() == Path("out/report.html").read_text()


@pytest.mark.parametrize(
    ("part", "options"),
    [
        ("simoffload.report.from_result.result_document", ("--explain",)),
        ("simoffload.exchange.chrome_trace.write_trace", ("--explain", "--trace")),
    ],
    ids=["report", "trace"],
)
def test_reports_and_traces_are_inside_the_limits(
    program, monkeypatch: pytest.MonkeyPatch, part: str, options: tuple[str, ...]
) -> None:
    def slow(*_: object, **__: object) -> None:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            pass

    monkeypatch.setattr(part, slow)
    monkeypatch.setattr("simoffload.planning.answers.Answer.explanation", None)
    monkeypatch.setattr("simoffload.planning.answers.Answer.next_changes", None)
    began = time.monotonic()
    answer = program("run", "small.yaml", "--timeout", "1 s", "--output-dir", "out", *options)
    assert time.monotonic() - began < 2.9
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith("error: stopped by engine.timeout (--timeout), which all parts of the")
    assert "share, while reporting;" in answer.err
    assert not Path("out").exists()


def test_what_does_not_fit_has_nothing_to_explain(program) -> None:
    answer = program("run", "small.yaml", *TOO_LARGE, "--explain", "--json")
    assert answer.status == 3
    assert "explanation" not in json.loads(answer.out)


def test_fit_does_not_simulate(program) -> None:
    answer = program("fit", "small.yaml", "--json")
    data = json.loads(answer.out)
    assert answer.status == 0
    assert data["passes"] == []
    assert {use["tier"] for use in data["capacity"]} == {"hbm", "dram", "raid"}


@pytest.mark.parametrize(("targets", "status"), [("hbm,dram,raid", 0), ("gpu", 3)])
def test_fit_on_several_targets(program, targets: str, status: int) -> None:
    answer = program("fit", "small.yaml", "--set", "model=bloom-176b", "--on", targets, "--json")
    data = json.loads(answer.out)
    assert answer.status == status
    assert {row["label"]: row["result"]["fits"] for row in data["compared"]} == {
        target: target != "hbm" for target in targets.replace("gpu", "hbm").split(",")
    }


def test_engine_limits_are_failures(program) -> None:
    answer = program("run", "small.yaml", "--set", "engine.max_events=10")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1


def test_whole_copies_are_not_a_tier(program) -> None:
    strategy = "strategy={kind: transformers, ranks: 2}"
    rendered = " ".join(program("run", "small.yaml", "--set", strategy).out.split())
    assert ", transformers batch 2 × 2 GPUs, " in rendered


@pytest.mark.parametrize(
    ("command", "options", "shared"), [("run", ("--explain",), [600]), ("advise", (), [540, None])]
)
def test_the_simulations_of_an_answer_share_its_time(
    program,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    options: tuple[str, ...],
    shared: list[float | None],
) -> None:
    """Of an explanation all; of advice a tenth is left for the report."""
    before, times = limits.sharing, []

    def recorded(timeout: float | None) -> object:
        times.append(timeout)
        return before(timeout)

    for module in (cli_answer, cli_planning):
        monkeypatch.setattr(module, "sharing", recorded)
    fast = ("--set", "workload.output_length=1", "--timeout", "600 s")
    assert program(command, "small.yaml", *options, *fast).status == 0
    assert times == shared


def test_copies_of_windows_in_blocks_of_other_layers_have_their_own_positions(program) -> None:
    """Some layers of GLM-5.2 have an indexer and others not, with equal operations on some streams."""
    machine = ("--set", "platform=dgx-h200", "--gpus", "4", "--program", "vllm")
    verified = ("--set", "model.num_hidden_layers=60", "--set", "engine.steady_state=verify")
    found = program("run", "glm-5.2", *machine, *verified)
    assert (found.status, found.err) == (0, "")
