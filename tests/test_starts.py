"""Every command starts: under every Python that the package supports, with the locked packages alone, and
without assertions."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.pythons import MINORS, found
from tests.test_repository import pinned

TOP = Path(__file__).parents[1]
PACKAGES = ("simoffload", "simoffload_calibrate")
ENVIRONMENTS = TOP / ".venv-pythons"
"""Environments that ``make test-pythons`` makes, each with the packages of requirements/runtime.txt alone."""
COMPILE = """
import ast, pathlib, sys, warnings
warnings.simplefilter("error")
for path in (one for folder in sys.argv[1:] for one in sorted(pathlib.Path(folder).rglob("*.py"))):
    text = path.read_text("utf-8")
    try:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                (ast.get_docstring(node) or "").encode()
        compile(text, path, "exec")
    except (SyntaxError, SyntaxWarning, UnicodeError) as error:
        print(f"{path}: {error}")
"""


def test_every_file_is_code_of_the_newest_python_and_its_docstrings_are_text() -> None:
    """From 3.13 on the compiler refuses a docstring with half of a surrogate pair."""
    _, newest = max([(sys.version_info.minor, Path(sys.executable)), *found().items()])
    done = subprocess.run(
        [newest, "-I", "-c", COMPILE, *PACKAGES], cwd=TOP, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


def _files() -> Iterator[tuple[str, ast.Module]]:
    for path in (one for name in PACKAGES for one in sorted((TOP / name).rglob("*.py"))):
        yield str(path.relative_to(TOP)), ast.parse(path.read_text())


def test_no_assertion_does_work() -> None:
    """``python -O`` leaves assertions out: they compare what is there, and call nothing else."""
    found = []
    for path, tree in _files():
        for one in (node for node in ast.walk(tree) if isinstance(node, ast.Assert)):
            calls = {ast.unparse(node.func) for node in ast.walk(one.test) if isinstance(node, ast.Call)}
            compares = isinstance(one.test, ast.Compare | ast.Call | ast.UnaryOp)
            if calls - {"isinstance", "len"} or not compares:
                found.append(f"{path}:{one.lineno}: {ast.unparse(one)}")
    assert found == []


def _answer(python: Path | str, *arguments: str, flags: Sequence[str] = ()) -> tuple[int, str, str]:
    done = subprocess.run(
        [python, *flags, "-m", "simoffload", *arguments],
        env={**os.environ, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


QUICK = (
    "run vllm/llama-3-70b",
    "stream serving/llama-3.1-8b-chat --set stream.num_prompts=200",
)
"""A strategy that checks its plan when it makes it, and a queue of requests."""


@pytest.mark.parametrize("command", QUICK)
def test_without_assertions_the_answer_is_the_same(command: str) -> None:
    arguments = shlex.split(command)
    status, out, _ = answer = _answer(sys.executable, *arguments)
    assert status == 0
    assert out
    assert _answer(sys.executable, *arguments, flags=["-O"]) == answer


def test_without_docstrings_it_is_refused_in_one_line() -> None:
    """Metrics are declared in docstrings, which ``python -OO`` removes."""
    status, out, err = _answer(sys.executable, "run", "ddn/bloom-7b1", flags=["-OO"])
    assert (status, out) == (2, "")
    assert re.fullmatch(r"error: python -OO: .* use python -O, or PYTHONOPTIMIZE=1, instead\n", err)


# -- the locked packages alone -----------------------------------------------------------------------


def test_the_runtime_lock_has_all_that_the_program_imports() -> None:
    """What is imported and not locked for it is of an extra, which says so where it is missing."""
    known = {
        "distributed",  # a sweep on a cluster
        "pyarrow",  # results as Parquet
    }
    words = set()
    for path, tree in _files():
        if not path.startswith("simoffload/"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                words |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                words.add(node.module.partition(".")[0])
    packages = packages_distributions()
    used = {name.lower().replace("_", "-") for word in words for name in packages.get(word, ())}
    assert used - pinned(TOP / "requirements" / "runtime.txt").keys() - {"simoffload"} == known


WITHOUT_OTHERS = """
import json, sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

arguments, HIDDEN = json.loads(sys.argv[1])
sys.meta_path.insert(0, Hidden())
if arguments[0] == "serve":
    import simoffload.extensions.web.server
    simoffload.extensions.web.server.serve = lambda *_, **__: print("served")
from simoffload.cli import main
sys.exit(main(arguments))
"""


@pytest.mark.parametrize(
    "command", ["serve", "run ddn/bloom-7b1 --output-dir page", "detect -o machine", "calibrate micro --help"]
)
def test_a_command_needs_the_locked_packages_alone(command: str, tmp_path: Path) -> None:
    locked = pinned(TOP / "requirements" / "runtime.txt").keys() | {"simoffload", "pip"}
    normal = {
        name: {one.lower().replace("_", "-").replace(".", "-") for one in owners}
        for name, owners in packages_distributions().items()
    }
    hidden = sorted(name for name, owners in normal.items() if owners.isdisjoint(locked))
    assert {"pytest", "distributed"} <= set(hidden)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OTHERS, json.dumps([shlex.split(command), hidden])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


# -- other Pythons -------------------------------------------------------------------------------------


def _environments() -> list[Path]:
    made = (ENVIRONMENTS / f"3.{minor}" / "bin" / "python" for minor in MINORS)
    return [one for one in made if one.exists()]


@pytest.mark.parametrize("python", _environments() or [None], ids=lambda one: one and one.parts[-3])
def test_commands_of_the_readme_run_under_another_python(python: Path | None, tmp_path: Path) -> None:
    """Warnings of the language are errors there: what is deprecated today is gone tomorrow."""
    if python is None:
        pytest.skip("make test-pythons makes environments of other Pythons")
    text = (TOP / "README.md").read_text()
    commands = re.findall(r"^\$ simoffload (.*)$", text, re.MULTILINE)
    commands += ["detect -o machine", "calibrate micro --help", "models list", "--help", *QUICK]
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    for command in commands:
        flags = ["-W", "error::DeprecationWarning", "-W", "error::SyntaxWarning"]
        done = subprocess.run(
            [python, *flags, "-m", "simoffload", *shlex.split(command)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout, command
    server = [python, "-c", "from simoffload.extensions.web.server import application"]
    subprocess.run(server, env=environment, check=True)
