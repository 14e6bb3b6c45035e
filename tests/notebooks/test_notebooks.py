"""Every notebook runs from top to bottom, uses the public interface alone and is kept without its outputs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import simoffload

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


@each
def test_it_runs(path: Path, kernel: Any) -> None:
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, km=kernel, timeout=600)
    # Nothing is left of the one before; garbage is collected as rarely as in the program.
    clean = "%reset -f\n__import__('gc').set_threshold(300_000)"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(clean))
    try:
        client.execute()
    finally:
        client.kc.stop_channels()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


@each
def test_outputs_are_not_kept(path: Path) -> None:
    assert all(not cell.outputs and cell.execution_count is None for cell in cells(path, "code"))


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
