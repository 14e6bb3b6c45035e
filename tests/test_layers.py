"""The layers of the architecture hold, and the check would notice if they did not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the package ``simoffload`` in a folder against the contracts in its pyproject.toml."""
    program = "from importlinter.cli import lint_imports_command as lint; lint(['--no-cache', '--no-logo'])"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )


def test_imports_point_down_only(repository: Path) -> None:
    result = lint_imports(repository)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture
def package(tmp_path: Path, repository: Path) -> Path:
    """A package of every layer, with nothing in it, under the repository's contracts."""
    shutil.copy(repository / "pyproject.toml", tmp_path)
    config = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    layers = config["tool"]["importlinter"]["contracts"][0]["layers"]
    names = [name for layer in layers for name in re.findall(r"\w+", layer)]
    for folder in [
        "simoffload",
        "simoffload_calibrate",
        "simoffload_calibrate/commands",
        *(f"simoffload/{name}" for name in names),
    ]:
        module = tmp_path / folder / "__init__.py"
        module.parent.mkdir(exist_ok=True)
        module.touch()
    return tmp_path


def test_empty_package_keeps_the_contracts(package: Path) -> None:
    result = lint_imports(package)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("place", "statement"),
    [
        ("hardware", "import simoffload.schedule"),
        ("hardware", "import simoffload.models"),
        ("engine", "def run():\n    from simoffload.strategies import plan"),
        ("errors", "import simoffload.hardware"),
        ("planning", "import simpy"),
        ("engine", "import pandas"),
        ("cli", "def draw():\n    import plotly.graph_objects"),
        ("planning", "def run():\n    import torch"),
        ("cli", "def run():\n    import deepspeed"),
        ("cli", "def run():\n    from simoffload.extensions import sweep"),
        ("cli", "from simoffload_calibrate import commands"),
        ("planning", "def run():\n    from validation import measured"),
        ("planning", "def run():\n    from simoffload_calibrate import compare"),
    ],
)
def test_a_forbidden_import_breaks_a_contract(package: Path, place: str, statement: str) -> None:
    (package / "simoffload" / place / "__init__.py").write_text(statement + "\n")
    result = lint_imports(package)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout


def test_a_module_outside_the_layers_breaks_a_contract(package: Path) -> None:
    (package / "simoffload" / "helpers.py").touch()
    result = lint_imports(package)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "simoffload.helpers" in result.stdout


@pytest.mark.parametrize(
    ("place", "statement"),
    [
        ("engine/part", "import simpy"),
        ("report/part", "import plotly"),
        ("results/part", "import pandas"),
        ("../simoffload_calibrate/part", "import torch, deepspeed, transformers"),
        ("../simoffload_calibrate/part", "from simoffload.report import page"),
        ("extensions/web", "from simoffload.cli import console"),
    ],
)
def test_each_heavy_package_has_a_home(package: Path, place: str, statement: str) -> None:
    (package / "simoffload" / f"{place}.py").write_text(statement + "\n")
    result = lint_imports(package)
    assert result.returncode == 0, result.stdout + result.stderr
