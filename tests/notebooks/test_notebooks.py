"""Every notebook runs from top to bottom, prints what is stored in it, and uses public names alone."""

from __future__ import annotations

import ast
import re
import runpy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import simoffload
from tests.notebooks.claims import CLAIMS

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
KernelManager = pytest.importorskip("jupyter_client", reason="jupyter_client is not installed").KernelManager

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def test_they_are_numbered_in_the_order_of_reading() -> None:
    assert NOTEBOOKS
    assert [path.stem[:3] for path in NOTEBOOKS] == [f"{1 + place:02}-" for place in range(len(NOTEBOOKS))]


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """One for all notebooks, as starting one and importing everything takes longer than most of them."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    manager = KernelManager()
    manager.start_kernel(cwd=str(FOLDER))
    yield manager
    manager.shutdown_kernel(now=True)


def _with_claims(path: Path) -> Any:
    """A notebook in which each section ends with what its text claims."""
    notebook, claims = nbformat.read(path, as_version=4), dict(CLAIMS[path.stem])
    told, heading = [], "Start"
    for cell in notebook.cells:
        headings = re.findall(r"^#+ (.*)$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else []
        if headings and heading in claims:
            told.append(nbformat.v4.new_code_cell(claims.pop(heading)))
        heading = [heading, *headings][-1]
        told.append(cell)
    told += [nbformat.v4.new_code_cell(claims.pop(heading))] if heading in claims else []
    assert claims == {}, "no section has these headings"
    notebook.cells = told
    return notebook


@each
def test_it_runs_and_its_outputs_are_those_that_are_stored(path: Path, kernel: Any) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    kept = runpy.run_path(str(FOLDER.parent / "docs" / "notebooks.py"))["stored"]
    shown = [cell.outputs for cell in cells(path, "code")]
    notebook = _with_claims(path)
    own = [cell for cell in notebook.cells if cell.get("id") in {one.id for one in cells(path, "code")}]
    client = nbclient.NotebookClient(notebook, km=kernel, timeout=600)
    # Nothing is left of the one before; garbage is collected as rarely as in the program.
    clean = "%reset -f\n__import__('gc').set_threshold(300_000)\n__import__('pandas').reset_option('display')"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(clean))
    try:
        client.execute()
    finally:
        client.kc.stop_channels()
    for number, (cell, stored) in enumerate(zip(own, shown, strict=True), 1):
        assert kept(cell.outputs, number) == stored, f"cell {number}; run: make notebooks"


@each
def test_nothing_stands_between_the_reader_and_a_result(path: Path) -> None:
    assert path.stat().st_size < 150_000
    assert "assert " not in "".join(cell.source for cell in cells(path, "code"))
    assert [cell.execution_count for cell in cells(path, "code")] == [*range(1, 1 + len(cells(path, "code")))]
    for name in (str(FOLDER.parent), str(Path.home()), tempfile.gettempdir() + "/"):
        assert name not in path.read_text()


@each
def test_it_uses_public_names_alone(path: Path) -> None:
    nodes = [node for cell in cells(path, "code") for node in ast.walk(ast.parse(cell.source))]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    used = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "so"
    }
    assert "simoffload" in imported
    assert not [name for name in imported | modules if name.startswith("simoffload.")]
    assert "simoffload" not in modules
    assert used <= set(simoffload.__all__)


@each
def test_links_lead_somewhere(path: Path) -> None:
    for cell in cells(path, "markdown"):
        for target in re.findall(r"\]\(([^)]+)\)", cell.source):
            assert (FOLDER / target).exists(), target
