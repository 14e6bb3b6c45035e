"""The published figures are complete data, and all of them can be simulated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from simoffload.scenario import list_scenarios, read_scenario
from validation.published import PLAN_METRICS, RESULT_METRICS
from validation.references import RULES, Reference, Role, load_references

REFERENCES = load_references()
SPECIAL_METRICS = {"ratio", "order"}
CHECKPOINTS = {"dn25", "dnx", "mlps", "bloom"}
TRAINING = {"xin", "zo20", "z3off", "z2off", "zinf", "zf", "zo", "zfb", "so"}
SERVED = {"acc", "cheops", "fg", "fg256", "gptf", "lcpp", "lmc", "mck", "srv", "vkv", "vw"}
"""Publications whose scenarios keep the weights where their own keys put them."""


def test_ids_are_unique() -> None:
    assert len({reference.id for reference in REFERENCES}) == len(REFERENCES)


def test_every_publication_is_there() -> None:
    assert {reference.publication for reference in REFERENCES} == {
        "ddn",
        "dn24",
        "zi22",
        "zi23",
    } | TRAINING | CHECKPOINTS | SERVED


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: reference.id)
def test_a_reference_makes_sense(reference: Reference) -> None:
    assert reference.source
    assert reference.locator
    assert reference.scenario in list_scenarios()
    assert reference.metric in RESULT_METRICS.keys() | PLAN_METRICS.keys() | SPECIAL_METRICS
    assert reference.rule in RULES.keys() | {"equal", "inside", "report"}
    assert bool(reference.tolerance) == (reference.rule in {"within", "factor", "between"})
    assert bool(reference.target) == (reference.publication not in TRAINING | SERVED)
    assert bool(reference.relative_to) == (reference.metric == "ratio")
    if reference.metric != "order":
        assert float(reference.published) >= 0


@pytest.mark.parametrize(
    "case", sorted({(reference.scenario, reference.overrides) for reference in REFERENCES}), ids=":".join
)
def test_overrides_apply(case: tuple[str, str]) -> None:
    scenario, overrides = case
    read_scenario(scenario, overrides=[part for part in overrides.split(";") if part]).plan()


# -- roles ----------------------------------------------------------------------------------------

FROM_WHOLE_RUNS = ("Zipf 0.76", "int8", "int4", "GGUF", "Adam")
"""The numbers that come from published runs, in the words of the documents."""
SENTENCE = re.compile(r"(?:No (?:other )?number|None) is fitted to the time of (?:a )?whole runs?")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/VALIDATION.md", "docs/CALIBRATION.md", "docs/limits.md")
DOCUMENTS = (*DOCUMENTS, "docs/decisions.md")


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: reference.id)
def test_a_figure_that_is_not_judged_names_its_number(reference: Reference) -> None:
    assert reference.role in get_args(Role)
    assert bool(reference.number) == (reference.role != "judged")


def test_the_files_of_numbers_exist(repository: Path) -> None:
    named = {name for one in REFERENCES for name in re.findall(r"[\w./-]+\.(?:py|yaml)", one.number)}
    assert named
    assert [name for name in named if not (repository / name).is_file()] == []


def test_a_figure_that_a_constant_or_a_profile_names_is_not_judged(repository: Path) -> None:
    """Both rates of llama.cpp that set the skew of routing, for example, are named where it is defined."""
    judged = {one.id for one in REFERENCES if one.role == "judged"}
    folders = ("simoffload", "simoffload_calibrate", "hardware_profiles")
    files = [
        path for name in folders for path in (repository / name).rglob("*") if path.suffix in {".py", ".yaml"}
    ]
    ids = re.compile("|".join(rf"\b{re.escape(one.id)}(?![\w-])" for one in REFERENCES))
    named = {found: path.name for path in files for found in ids.findall(path.read_text("utf-8"))}
    assert {"lcpp-spark-g120-b8", "lcpp-spark-q30-b8", "xin-adam-2b-t1", "xin-adam-2b-t6"} <= named.keys()
    assert {name: file for name, file in named.items() if name in judged} == {}


def test_figures_like_those_that_set_a_number_are_in_view() -> None:
    """They could have been chosen: other rates of the kernels, other batches, other threads."""
    roles = {one.id: one.role for one in REFERENCES}
    for name in ("gptf-70b-int8-tp1", "gptf-70b-int4-tp8", "lcpp-spark-g120-b16", "xin-adam-2b-t4"):
        assert roles[name] == "in view"
    assert {roles[name] for name in roles if "bf16" in name} == {"judged", "in view"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_sentence_about_whole_runs_names_its_exceptions(repository: Path, document: str) -> None:
    """VALIDATION.md names them all; every other document does so, too, or has their number and a link."""
    paragraphs = [
        line for line in (repository / document).read_text("utf-8").splitlines() if SENTENCE.search(line)
    ]
    assert paragraphs
    for paragraph in paragraphs:
        sentence = paragraph[SENTENCE.search(paragraph).start() :].split(". ")[0]  # type: ignore[union-attr]
        assert "except for seven that" in sentence
        if document == "docs/VALIDATION.md" or "VALIDATION.md) lists" not in sentence:
            assert [name for name in FROM_WHOLE_RUNS if name not in paragraph] == []


def test_no_other_document_has_that_sentence(repository: Path) -> None:
    pages = [path for path in (repository / "docs").rglob("*.md") if path.name != "CHANGELOG.md"]
    found = {str(path.relative_to(repository)) for path in pages if SENTENCE.search(path.read_text("utf-8"))}
    assert found <= set(DOCUMENTS)
