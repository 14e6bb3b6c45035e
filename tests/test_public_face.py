"""``import simoffload``: what it names, and that naming costs nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import simoffload

HEAVY = {"jinja2", "numpy", "pandas", "plotly", "pydantic", "simpy", "yaml"}


def test_names_are_sorted_and_unique() -> None:
    assert simoffload.__all__ == sorted(set(simoffload.__all__))


@pytest.mark.parametrize("name", simoffload.__all__)
def test_every_name_resolves(name: str) -> None:
    value = getattr(simoffload, name)
    assert value.__doc__, f"{name} has no docstring"
    assert name in dir(simoffload)


def test_type_checkers_see_the_same_names() -> None:
    assert sorted(simoffload._HOME) == simoffload.__all__
    tree = ast.parse(Path(str(simoffload.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == simoffload._HOME


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="simulte"):
        _ = simoffload.simulte  # type: ignore[attr-defined]


def test_the_old_name_of_break_even_points_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="use simoffload.break_even_points"):
        assert simoffload.flips is simoffload.break_even_points  # type: ignore[attr-defined]
    assert "flips" not in dir(simoffload)


def test_import_loads_nothing_heavy() -> None:
    program = "import sys, simoffload; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert HEAVY.isdisjoint(result.stdout.split())
