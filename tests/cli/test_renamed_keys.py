"""Old keys and kinds of a scenario do what the new ones do, with one warning each that names the new one."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from simoffload.documents import Document, read_document, rename_keys
from simoffload.errors import InputError, Problem
from simoffload.scenario import read_scenario, resolve
from simoffload.strategies import in_new_form
from tests.cli.conftest import SCENARIO, Program

pytestmark = pytest.mark.usefixtures("known")

OLD = f"{SCENARIO}engine:\n  fold: off\n  tokens: verify\n  timeout: 1 h\n"
NEW = OLD.replace("fold", "rank_symmetry").replace("tokens", "decode_extrapolation")


def warning(place: str, old: str, new: str) -> str:
    """Return the warning about an old key."""
    text = f"was renamed; write engine.{new}, because the next release refuses the old key"
    return f"{place}: engine.{old}: {text}"


WARNINGS = [
    warning("old.yaml:11:3", "fold", "rank_symmetry"),
    warning("old.yaml:12:3", "tokens", "decode_extrapolation"),
]


@pytest.fixture(autouse=True)
def files(program: Program, tmp_path: Path) -> None:  # noqa: ARG001  # its folder is the current one
    (tmp_path / "old.yaml").write_text(OLD)
    (tmp_path / "new.yaml").write_text(NEW)


def about_keys(text: str) -> list[str]:
    """Return the warnings about renamed keys in the lines of a text."""
    return [line.removeprefix("warning: ") for line in text.splitlines() if "was renamed" in line]


def test_the_old_keys_give_the_scenario_of_the_new_ones() -> None:
    old, new = read_scenario("old.yaml"), read_scenario("new.yaml")
    assert (old.scenario, old.document.data) == (new.scenario, new.document.data)
    assert old.warnings == (*WARNINGS, *new.warnings)
    assert old.on("dram").on("raid").warnings == old.warnings, "a variant warns no second time"


@pytest.mark.parametrize("command", ["run", "fit", "advise"])
def test_every_result_has_each_warning_once(program: Program, command: str) -> None:
    warnings = json.loads(program(command, "old.yaml", "--json").out)
    assert sum(json.dumps(warnings).count(json.dumps(one)) for one in WARNINGS) == len(WARNINGS)


def test_a_comparison_has_each_warning_once(program: Program) -> None:
    answer = program("compare", "old.yaml", "--on", "dram,raid")
    text = " ".join(answer.out.split())
    assert [text.count(f"dram; raid; vLLM: {one}") for one in WARNINGS] == [1, 1]
    assert text.count("was renamed") == 2


def test_check_gives_the_warnings(program: Program) -> None:
    answer = program("check", "old.yaml")
    assert (answer.status, about_keys(answer.err)) == (0, WARNINGS)


def test_an_old_key_in_an_override() -> None:
    scenario = read_scenario("small.yaml", overrides=["engine.fold=off", "engine={jump: off, memory: 1 GB}"])
    assert scenario.scenario.engine.steady_state == "off"
    assert scenario.warnings[0] == warning("--set", "jump", "steady_state")
    assert sum("was renamed" in one for one in scenario.warnings) == 1


def test_an_old_key_as_an_axis_of_a_sweep(program: Program) -> None:
    axis_warning = warning("--axis", "jump", "steady_state")

    def rows(scenario: str, axis: str) -> list[list[str]]:
        answer = program("sweep", scenario, "--axis", axis, "--workers", "1", "-o", f"{scenario}.csv")
        assert about_keys(answer.err) == ([axis_warning, *WARNINGS] if scenario == "old.yaml" else [])
        with Path(f"{scenario}.csv").open() as file:
            return list(csv.reader(file))[1:]

    old, new = rows("old.yaml", "engine.jump=on,off"), rows("new.yaml", "engine.steady_state=on,off")
    assert old == new


def test_an_old_key_in_the_section_sweep_is_one_warning_of_check(program: Program) -> None:
    Path("swept.yaml").write_text(f"{OLD}sweep: {{axes: {{engine.fold: {{choices: [on, off]}}}}}}\n")
    warnings = about_keys(program("check", "swept.yaml").err)
    assert warnings == [
        *(one.replace("old.yaml", "swept.yaml") for one in WARNINGS),
        warning("swept.yaml:14:29", "fold", "rank_symmetry").replace(
            "engine.fold", 'sweep.axes."engine.fold"'
        ),
    ]


@pytest.mark.parametrize(
    "override", ["engine.rank_symmetry=on", "engine={fold: on, rank_symmetry: off, tokens: off}"]
)
def test_old_and_new_key_together_are_refused(override: str) -> None:
    with pytest.raises(InputError) as caught:
        read_scenario("old.yaml", overrides=[override])
    (problem,) = caught.value.problems
    assert problem.key == "engine.fold"
    assert problem.message == (
        "is the old name of engine.rank_symmetry, which is given too; remove engine.fold"
    )


def test_old_and_new_key_as_axes_are_refused(program: Program) -> None:
    answer = program(
        "sweep", "small.yaml", "--axis", "engine.fold=on", "--axis", "engine.rank_symmetry=on,off"
    )
    assert answer.status == 2
    assert answer.err == (
        "error: --axis: engine.fold: is the old name of engine.rank_symmetry, which is given too; "
        "remove engine.fold\n"
    )


def test_a_problem_with_an_old_key_is_placed_where_it_is_written() -> None:
    Path("old.yaml").write_text(OLD.replace("fold: off", "fold: maybe"))
    with pytest.raises(InputError, match=r"old\.yaml:11:9: engine\.rank_symmetry: must be"):
        read_scenario("old.yaml")


def test_a_key_may_move_to_another_section() -> None:
    problems: list[Problem] = []
    document = Document("a.yaml", {"old": {"key": {"inner": 1}, "other": 2}})
    changed = rename_keys(document, {"old.key": "new.section.key", "absent": "old.other"}, problems)
    assert changed.data == {"old": {"other": 2}, "new": {"section": {"key": {"inner": 1}}}}
    assert (len(changed.warnings), problems) == (1, [])
    assert rename_keys(changed, {"old.key": "new.section.key"}, problems) is changed


# -- kinds of strategy ---------------------------------------------------------------------------

SECTIONS = [
    ("{kind: zero_inference, ranks: 2}", "{kind: deepspeed, ranks: 2}", "kind: deepspeed"),
    ("{kind: resident, ranks: 2}", "{kind: transformers, ranks: 2}", "kind: transformers"),
    ("{kind: vllm_cpu_offload, cpu_offload_gb: 1}", "{kind: vllm, cpu_offload_gb: 1}", "kind: vllm"),
    (
        "{kind: vllm_cpu_offload, compiled: false}",
        "{kind: vllm, enforce_eager: true}",
        "kind: vllm and enforce_eager: true, without compiled",
    ),
    (
        "{kind: tensor_parallel, tensor_parallel_size: 2, compiled: true}",
        "{kind: vllm, tensor_parallel_size: 2}",
        "kind: vllm, without compiled",
    ),
    (
        "{kind: tensor_parallel, data_parallel_size: 2}",
        "{kind: transformers, tensor_parallel_size: 1, ranks: 2}",
        "kind: transformers and tensor_parallel_size: 1 and ranks: 2, without data_parallel_size",
    ),
]


def of_kind(section: str) -> Document:
    """Return the document of a scenario with a section ``strategy``."""
    text = SCENARIO[: SCENARIO.index("strategy:")].replace("bloom-560m", "llama-2-7b")
    Path("s.yaml").write_text(f"{text}strategy: {section}\n")
    return read_document(Path("s.yaml"))


@pytest.mark.parametrize(("old", "new", "write"), SECTIONS)
def test_old_kinds_are_the_new_ones_with_one_warning(old: str, new: str, write: str) -> None:
    before, after = resolve(of_kind(old)), resolve(of_kind(new))
    kind = old[len("{kind: ") :].partition(",")[0]
    text = f"{kind} was renamed; write {write}, because 0.2.0 refuses the old name"
    assert [one for one in before.warnings if "renamed" in one] == [f"s.yaml:5:18: strategy.kind: {text}"]
    assert not [one for one in after.warnings if "renamed" in one]
    assert before.scenario.strategy == after.scenario.strategy
    assert before.edited(*()).warnings == before.warnings, "a variant warns no second time"


def test_compiled_is_the_opposite_of_enforce_eager() -> None:
    found = resolve(of_kind("{kind: vllm, compiled: false}"))
    (text,) = (one for one in found.warnings if "renamed" in one)
    assert "strategy.compiled: compiled was renamed; write kind: vllm and enforce_eager: true" in text
    assert found.scenario.strategy.enforce_eager  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"s\.yaml:5:34: strategy\.enforce_eager: must be true or false"):
        resolve(of_kind("{kind: vllm, compiled: maybe}"))


@pytest.mark.parametrize("name", ["llama.cpp", "ollama", "lmstudio"])
def test_programs_that_are_llama_cpp_inside_are_read_as_it(name: str) -> None:
    found = resolve(of_kind(f"{{kind: {name}}}"))
    assert found.scenario.strategy.kind == "llama_cpp"
    assert not [one for one in found.warnings if "renamed" in one]


def test_the_class_of_a_program_follows_from_the_workload() -> None:
    """Its keys are those of the workload, also in messages, and where the workload is wrong otherwise."""
    training = "workload: {kind: training, batch_size: 1, sequence_length: 8}\n"
    start = SCENARIO[: SCENARIO.index("workload:")]
    Path("t.yaml").write_text(f"{start}{training}strategy: {{kind: zero_training, optimizer: dram}}\n")
    assert "optimizer" in type(read_scenario("t.yaml").scenario.strategy).model_fields
    with pytest.raises(InputError, match=r"workload\.batch_size: must be at least 1") as caught:
        read_scenario("t.yaml", overrides=["workload.batch_size=0"])
    assert len(caught.value.problems) == 1
    with pytest.raises(InputError, match=r"strategy\.optimizer: unknown key"):
        resolve(of_kind("{kind: deepspeed, optimizer: dram}"))


@pytest.mark.usefixtures("program")
def test_an_old_kind_in_an_override() -> None:
    found = read_scenario("small.yaml", overrides=["strategy.kind=zero_inference"])
    (text,) = (one for one in found.warnings if "renamed" in one)
    assert text.startswith("--set: strategy.kind: zero_inference was renamed; write kind: deepspeed, because")


def test_a_section_in_its_present_form_is_itself() -> None:
    section = {"kind": "vllm", "tensor_parallel_size": 2}
    assert in_new_form(section)[0] is section
