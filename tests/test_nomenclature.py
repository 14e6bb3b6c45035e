"""Every metric is explained with its unit; names in the package are unique, and words of this field."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from simoffload.extensions.sweep.definition import reserved
from simoffload.planning.answers import Answer
from simoffload.planning.compare import Comparison
from simoffload.planning.economics import COST_METRICS
from simoffload.results import declared_metrics
from simoffload.scenario import read_scenario
from simoffload.simulation import fit

PAGE = (Path(__file__).parents[1] / "docs" / "nomenclature.md").read_text()
ROWS = [
    [cell.strip() for cell in line.split("|")[1:4]] for line in PAGE.splitlines() if line.startswith("| ")
]
UNITS = {name: unit for names, _, unit in ROWS for name in re.findall(r"`(\w+)`", names)}


def test_columns_of_a_sweep_are_explained() -> None:
    names = {name.removesuffix("_p10").removesuffix("_p90") for name in reserved()}
    assert sorted(names - UNITS.keys() - declared_metrics().keys()) == []


def test_costs_are_explained() -> None:
    assert sorted(COST_METRICS.keys() - UNITS.keys()) == []


def test_columns_of_a_comparison_are_explained() -> None:
    names = "xinnor/llama-1b", "checkpoint/mlperf-8b"
    columns, _ = Comparison({name: Answer.of(fit(read_scenario(name))) for name in names}).table()
    said_by_itself = {"model", "platform", "workload"}
    assert sorted(set(columns) - said_by_itself - UNITS.keys() - declared_metrics().keys()) == []


# -- names and docstrings of the package ----------------------------------------------------------

PACKAGES = [Path(__file__).parents[1] / name for name in ("simoffload", "simoffload_calibrate")]
BANNED = frozenset(
    {
        *(
            "alike",
            "chain",
            "course",
            "crew",
            "dear",
            "doubt",
            "doubts",
            "flips",
            "freed",
            "hurts",
            "ink",
            "knob",
            "knobs",
        ),
        *("lane", "lay", "lies", "moved", "paper", "plug", "reading", "said", "shelf", "story", "told"),
        *("roof", "too_dear", "walk", "ways", "wear", "whole", "words", "workshop"),
    }
)
"""Private words; ``docs/nomenclature.md`` and the vocabulary of the field have others for all of them."""


@cache
def trees() -> Mapping[Path, ast.Module]:
    """All modules of the package."""
    return {
        path: ast.parse(path.read_text()) for package in PACKAGES for path in sorted(package.rglob("*.py"))
    }


def same_names(trees: Mapping[Path, ast.Module]) -> list[str]:
    """Public classes whose name occurs twice."""
    names = Counter(
        node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1 and not name.startswith("_"))


def defined(tree: ast.Module) -> Iterator[str]:
    """Every name that a module defines or sets, at any depth; what it imports or calls is others' choice."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case (
                ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield name


def banned(trees: Mapping[Path, ast.Module]) -> list[str]:
    """Definitions under a banned name, whatever the case and the underscores around it."""
    found = {(path, name) for path, tree in trees.items() for name in (path.stem, *defined(tree))}
    return sorted(f"{path}: {name}" for path, name in found if name.strip("_").lower() in BANNED)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings of definitions and of fields, with their lines."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                    yield line, " ".join(text.split())


def too_short(trees: Mapping[Path, ast.Module]) -> list[str]:
    """Docstrings under five words that give no unit."""
    return [
        f"{path}:{line}: {text}"
        for path, tree in trees.items()
        for line, text in docstrings(tree)
        if len(text.split()) < 5 and "[" not in text
    ]


def split_sentences(trees: Mapping[Path, ast.Module]) -> list[str]:
    """Docstrings that go on with the sentence of the one above them."""
    found = []
    for path, tree in trees.items():
        above = "."
        for line, text in sorted(docstrings(tree)):
            goes_on = re.match(r"(And|But|Or) ", text) or (re.match(r"[a-z]", text) and above[-1:].isalnum())
            if goes_on:
                found.append(f"{path}:{line}: {text}")
            above = text
    return found


def test_no_two_public_classes_have_one_name() -> None:
    assert same_names(trees()) == []


def test_private_words_are_no_names() -> None:
    assert banned(trees()) == []


def test_docstrings_say_something() -> None:
    assert too_short(trees()) == []


def test_no_sentence_goes_on_in_the_next_docstring() -> None:
    assert split_sentences(trees()) == []


OFFENDER = '''
class Part:
    size: int
    """[B] of the first"""
    rest: int
    """and of the others."""

    def told(self, knobs: int) -> None:
        """Say it."""
        self._words = whole = knobs
'''


def test_every_rule_finds_an_offender() -> None:
    trees = {Path("a/one.py"): ast.parse(OFFENDER), Path("b/lane.py"): ast.parse("class Part: ...")}
    assert same_names(trees) == ["Part"]
    assert banned(trees) == [
        "a/one.py: _words",
        "a/one.py: knobs",
        "a/one.py: told",
        "a/one.py: whole",
        "b/lane.py: lane",
    ]
    assert too_short(trees) == ["a/one.py:6: and of the others.", "a/one.py:9: Say it."]
    assert split_sentences(trees) == ["a/one.py:6: and of the others."]
