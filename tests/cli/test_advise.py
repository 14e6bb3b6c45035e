"""``simoffload advise``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NoReturn

import pytest

from simoffload.errors import WorkLimitError
from simoffload.scenario import read_scenario
from simoffload.simulation import simulate

FAST = ("--set", "workload.output_length=1")


@pytest.mark.usefixtures("known")
def test_an_answer_in_words(program) -> None:
    answer = program("advise", "small.yaml", *FAST)
    assert (answer.status, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert re.match(r"Verdict: [\d.]+ m?s to the first token \(", lines[1])
    titles = {
        "Changes that help",
        "Changes that do not help",
        "Confidence",
        "Cost and energy",
    }
    assert {*titles, "Storage bandwidth and throughput"} <= set(lines)
    assert max(map(len, lines)) <= 100
    assert "…" not in answer.out, "nothing is cut off"


@pytest.mark.usefixtures("known")
def test_an_answer_for_programs_is_that_of_the_file(program, tmp_path: Path) -> None:
    answer = program("advise", "small.yaml", "--json", "--output-dir", "out", *FAST)
    rendered = json.loads(answer.out)
    assert answer.status == 0
    assert rendered == json.loads((tmp_path / "out" / "result.json").read_text())
    assert rendered["schema"] == "simoffload/advice/1"
    assert rendered["search"] is None
    assert rendered["storage"]["tier"] == "raid"
    files = sorted(path for path in (tmp_path / "out").rglob("*") if "recommended/" in str(path))
    assert sorted(rendered["recommended"]) == [
        path.relative_to(tmp_path / "out").as_posix() for path in files
    ]
    gains = {f"{option['key']}": option["gain"] for option in rendered["options"]}
    base = simulate(read_scenario("small.yaml", overrides=FAST[1:])).unit_s
    for path in files:
        if path.suffix == ".yaml":
            assert base / simulate(read_scenario(path)).unit_s == gains[path.stem.partition("-")[2]]


@pytest.fixture
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue of fewer sizes."""
    for name, sizes in {"_DRIVES": (4,), "_MEMORY": (1,), "_BATCH": (1, 2)}.items():
        monkeypatch.setattr(f"simoffload.extensions.purchases.search.{name}", sizes)


@pytest.mark.usefixtures("_narrow", "known")
def test_a_search_and_its_files(program, tmp_path: Path) -> None:
    argv = ("--budget", "201,000 total", "--slo", "ttft=1s", "--output-dir", "out", "--json")
    answer = program("advise", "small.yaml", *argv, *FAST)
    assert answer.status == 0
    found = json.loads(answer.out)["search"]
    assert found["best"]["meets"] is True
    assert found["best"]["purchase"] <= 201_000
    assert found["outcomes"]["exceed the budget"] > 0
    best = simulate(read_scenario(tmp_path / "out" / "recommended" / "best.yaml"))
    assert best.metrics() == found["best"]["metrics"]
    assert best.metrics()["ttft_s"] <= 1
    front = sorted((tmp_path / "out" / "recommended").glob("front-*.yaml"))
    assert len(front) == len(found["front"]) > 0


@pytest.mark.usefixtures("_narrow", "known")
def test_nothing_within_the_budget_is_an_answer(program) -> None:
    answer = program("advise", "small.yaml", "--budget", "5total", *FAST)
    assert answer.status == 3
    assert "no combination is possible" in answer.out
    assert "the present machine alone costs" in " ".join(answer.out.split())


@pytest.mark.usefixtures("_narrow", "known")
def test_a_budget_beyond_the_machine_is_added_to_its_price(program) -> None:
    """A scenario names a machine, so that an amount without a sign is beyond it, too."""
    kept = json.loads(program("advise", "small.yaml", "--budget", "+5", "--json", *FAST).out)
    plain = json.loads(program("advise", "small.yaml", "--budget", "5", "--json", *FAST).out)
    assert plain["search"]["front"] == kept["search"]["front"]
    text = " ".join(program("advise", "small.yaml", "--budget", "5", *FAST).out.split())
    assert "at most 5 USD beyond the present machine" in text
    assert program("advise", "small.yaml", "--budget", "+5 total", *FAST).status == 2
    price = kept["search"]["front"][0]["purchase"]
    assert all(point["purchase"] <= price + 5 for point in kept["search"]["front"])
    assert kept["search"]["best"] is not None
    wrong = program("advise", "small.yaml", "--budget", "+0", *FAST)
    assert (wrong.status, wrong.err.count("error:")) == (2, 1)
    assert 'an amount above 0, such as 1500, +1500 or "40000 total"' in wrong.err


def test_on_another_tier_and_a_model_by_its_name(program) -> None:
    assert "Bandwidth the storage" not in program("advise", "small.yaml", "--on", "dram", *FAST).out
    answer = program("advise", "bloom-560m", "--on", "dgx-a100:dram", "--program", "vllm", *FAST)
    assert answer.status == 0
    assert "8 × 8 GPUs" not in answer.out
    assert "batch 8 on 8 GPUs" in answer.out


def test_what_does_not_fit_is_told_what_would(program) -> None:
    answer = program("advise", "small.yaml", "--set", "model=bloom-176b", "--on", "gpu", *FAST)
    assert answer.status == 0
    assert "Change with the highest throughput that makes it fit: " in " ".join(answer.out.split())


def test_where_nothing_helps_the_status_says_so(program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simoffload.planning.advise.evaluate.options_of", lambda *_: ())
    answer = program("advise", "small.yaml", "--set", "model=bloom-176b", "--on", "gpu", *FAST)
    assert answer.status == 3
    assert "No change that was tried makes it fit." in " ".join(answer.out.split())


# -- interruptions and mistakes ------------------------------------------------------------------


def test_an_interrupt_leaves_nothing(program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_args: object, **_options: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("simoffload.planning.evaluator.simulate", interrupt)
    answer = program("advise", "small.yaml", "--output-dir", "out", *FAST)
    assert answer == (130, "", "interrupted\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["small.yaml"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--platforms", "dgx-h10"), 'there is no platform "dgx-h10"; did you mean "dgx-h100"?'),
        (("--slo", "tpto=5s"), 'unknown metric "tpto"; did you mean "tpot"?'),
        (("--costs", "none.yaml"), "none.yaml: no such file"),
    ],
)
def test_slips_are_found_before_anything_is_simulated(
    program, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], message: str
) -> None:
    def forbidden(*_args: object, **_options: object) -> NoReturn:
        raise AssertionError("simulated")

    monkeypatch.setattr("simoffload.planning.evaluator.simulate", forbidden)
    answer = program("advise", "small.yaml", *argv)
    assert answer.status == 2
    assert message in answer.err


def test_a_limit_that_stops_a_change_does_not_stop_the_others(
    program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_args: object, **_options: object) -> NoReturn:
        raise WorkLimitError("stopped by engine.timeout (--timeout) before decode 1")

    monkeypatch.setattr("simoffload.planning.evaluator.Evaluator.timed", stopped)
    answer = program("advise", "small.yaml", *FAST)
    assert answer.status == 0
    assert answer.err == (
        "storage bandwidth is left out: stopped by engine.timeout (--timeout) before decode 1\n"
    )
    assert "Storage bandwidth" not in answer.out
    assert "Changes that help" in answer.out


def test_names_command_no_terminal_and_break_no_file(program, tmp_path: Path) -> None:
    name = "a\x1b[31m\nmodel: 'x' \"y\" # ${z} \u202e"
    (tmp_path / "evil.json").write_text(json.dumps(json_scenario(name)))
    answer = program("advise", "evil.json", "--output-dir", "out", *FAST)
    assert answer.status == 0
    assert "\x1b" not in answer.out
    for path in (tmp_path / "out" / "recommended").glob("0*.yaml"):
        assert read_scenario(path).name.startswith(name)


def json_scenario(name: str) -> dict[str, object]:
    return {
        "name": name,
        "model": "bloom-560m",
        "platform": "dgx-a100",
        "workload": {"batch_size": 2, "prompt_length": 8, "output_length": 1},
        "strategy": {
            "ranks": 2,
            "weights": "dram",
            "ds_config": {"zero_optimization": {"offload_param": {"buffer_size": 4000000000}}},
        },
    }


@pytest.mark.parametrize("target", ["dram", "nfs"])
def test_settings_to_paste_alone_say_it_all(
    program, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given back with the name of the model that was asked for, and given to ``check``; a setting gains too
    little to be recommended unless predictions are exact."""
    monkeypatch.setattr("simoffload.planning.advise.evaluate.margin", lambda *_, **__: 0.0)
    short = ("--set", "workload.output_length=2", "--json")
    asked = ("opt-350m", "--program", "deepspeed", "--on", f"dgx-a100:{target}")
    rendered = program("advise", *asked, *short, "--output-dir", "out")
    assert rendered.status == 0, rendered.err
    options = (one for one in json.loads(rendered.out)["options"] if one["gain"] > 1)
    (best, *_) = (one for one in options if one["kind"] == "setting")
    (file, *_) = sorted((tmp_path / "out" / "recommended").glob("*.ds_config.json"))
    config = json.loads(file.read_text())
    assert config == best["exports"]["ds_config.json"]
    (tmp_path / "ds.json").write_text(file.read_text())
    checked = program("check", "ds.json")
    assert (checked.status, checked.err) == (0, "")
    given = ("--set", "platform=dgx-a100", "--set", "strategy.ds_config=ds.json")
    found = program("run", "opt-350m", *given, *short)
    assert found.status == 0, found.err
    assert json.loads(found.out)["metrics"] == best["metrics"]
    assert json.dumps(config, indent=2)[2:-2] in (tmp_path / "out" / "report.md").read_text()
