"""Rules about the repository's own files, and that the wheel carries what the package needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import simoffload

LARGEST_WHEEL = 3_000_000
"""[B]"""

# Paths of one developer's machine, and hosts that packages may have come from.
PRIVATE = re.compile(r"(?<![\w.~-])/(?:work|root|home|Users)/|\bpypi\.|pythonhosted|artifactory")


def tracked_files(repository: Path, folder: str = "") -> Iterator[Path]:
    """Every file below a folder of the checkout, without hidden folders and what .gitignore names."""
    lines = (repository / ".gitignore").read_text().splitlines()
    ignored = [line.rstrip("/") for line in lines if line and not line.startswith("#")]

    def kept(name: str) -> bool:
        return not any(fnmatch(name, rule) for rule in ignored)

    for parent, folders, files in os.walk(repository / folder):
        folders[:] = [name for name in folders if kept(name) and (name == ".ci" or name[0] != ".")]
        yield from (Path(parent, name) for name in files if kept(name) and name != ".git")  # a worktree's


def test_no_file_names_a_private_path_or_a_package_index(repository: Path) -> None:
    found = []
    for path in tracked_files(repository):
        if path == Path(__file__):
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [f"{path.relative_to(repository)}: {match[0]}" for match in PRIVATE.finditer(text)]
    assert found == []


def pinned(lock: Path) -> dict[str, str]:
    """Name and version of every package in a lock file."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^ \\]+)", lock.read_text(), re.MULTILINE))


def required(requirements: list[str | dict[str, str]]) -> set[str]:
    names = {re.split(r"[^\w-]", entry)[0].lower() for entry in requirements if isinstance(entry, str)}
    return {name.replace("_", "-") for name in names}


def test_locks_cover_what_the_project_requires(repository: Path) -> None:
    config = tomllib.loads((repository / "pyproject.toml").read_text())
    runtime = pinned(repository / "requirements" / "runtime.txt")
    dev = pinned(repository / "requirements" / "dev.txt")
    assert required(config["project"]["dependencies"]) <= runtime.keys()
    assert required(config["dependency-groups"]["build"]) <= runtime.keys()
    assert set(members(config["dependency-groups"], "dev")) <= dev.keys()
    calibrate = pinned(repository / "requirements" / "calibrate.txt")
    torch = pinned(repository / "requirements" / "torch.txt")
    locks = {
        "cluster": dev,
        "notebook": dev,
        "parquet": dev,
        "search": dev,
        "web": dev,
        "calibrate": calibrate | torch,
    }
    for name, extra in config["project"]["optional-dependencies"].items():
        assert required(extra) <= locks[name].keys()
    groups = config["dependency-groups"]
    assert required(groups["pytest"]) <= dev.keys() & calibrate.keys()
    extras = config["project"]["optional-dependencies"]
    wanted = {one for name, extra in extras.items() if name != "calibrate" for one in extra}
    assert wanted <= set(groups["optional"])
    assert required(groups["optional"]) <= dev.keys()
    assert runtime.items() <= dev.items(), "the tests must run on the versions that users get"
    both = runtime.keys() & calibrate.keys()
    assert {name: calibrate[name] for name in both} == {name: runtime[name] for name in both}
    assert required(config["project"]["dependencies"]) <= calibrate.keys()


def members(groups: dict[str, list[str | dict[str, str]]], name: str) -> set[str]:
    """All packages of a dependency group and of those that it includes."""
    inner = (entry["include-group"] for entry in groups[name] if isinstance(entry, dict))
    return required(groups[name]).union(*(members(groups, one) for one in inner))


def test_the_group_of_the_tests_has_all_that_they_import_and_run(repository: Path) -> None:
    """Without the group ``dev``, as CONTRIBUTING.md installs it."""
    config = tomllib.loads((repository / "pyproject.toml").read_text())
    text = "".join(path.read_text() for path in (repository / "tests").rglob("*.py"))
    words = set(re.findall(r"^ *(?:import|from) ([a-z_0-9]+)", text, re.MULTILINE))
    words |= {word for pair in re.findall(r'"-m", "([a-z]+)|"from ([a-z]+)', text) for word in pair if word}
    packages = packages_distributions()
    used = {name.lower().replace("_", "-") for word in words for name in packages.get(word, ())}
    has = members(config["dependency-groups"], "test") | required(config["project"]["dependencies"])
    extras = required(config["project"]["optional-dependencies"]["calibrate"])
    of_these = {"jupyter-client", "tornado"}  # come with nbclient and distributed
    of_these |= required(config["dependency-groups"]["docs"])  # its test is skipped without them
    assert used - has - extras - of_these - {"simoffload"} == set()
    assert {"hatchling", "import-linter", "hypothesis", "pytest"} <= used


def test_the_tests_with_deepspeed_bring_no_cuda(repository: Path) -> None:
    assert list(pinned(repository / "requirements" / "torch.txt")) == ["torch"]
    names = pinned(repository / "requirements" / "calibrate.txt")
    assert [name for name in names if re.match("nvidia-|cuda-|triton$|torch$", name)] == []


@pytest.mark.parametrize("name", ["runtime.txt", "dev.txt", "calibrate.txt"])
def test_every_locked_package_has_a_hash(repository: Path, name: str) -> None:
    text = (repository / "requirements" / name).read_text()
    entries = re.split(r"^(?=[a-z0-9-]+==)", text, flags=re.MULTILINE)[1:]
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_changelog_knows_the_version(repository: Path) -> None:
    assert f"## [{simoffload.__version__}]" in (repository / "CHANGELOG.md").read_text()


def test_readme_names_commands_that_exist(repository: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    for name in ["README.md", "CONTRIBUTING.md"]:
        named = set(re.findall(r"(?:^|`)make ([a-z]+)", (repository / name).read_text(), re.MULTILINE))
        assert named
        assert named <= targets, name


def recipes(repository: Path) -> list[list[str]]:
    """The rows of the tables of CONTRIBUTING on how to extend it: what, number of files, and the rest."""
    text = (repository / "CONTRIBUTING.md").read_text()
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows if not row[0].startswith(" to add")]


def files_of_example(path: Path) -> int:
    """The files that an example consists of: itself, if it imports no other example, and profiles in the
    folder of the kind that it registers; or those of a folder beside the scenario."""
    folder = path.parent
    if path.suffix != ".py":
        return len(list(folder.iterdir())) - 1
    text = path.read_text()
    own = {one.stem for one in folder.glob("*.py")}
    assert not own & set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)), path
    kinds = re.findall(r"register_tier\(|TierKind\(\s*\"(\w+)\"", text)
    return 1 + sum(len(list((folder / kind).iterdir())) for kind in kinds if kind)


def files_with(repository: Path, words: list[str]) -> set[Path]:
    """The files of the package in which any of some words is."""
    word = re.compile("|".join(rf"(?<![\w-]){re.escape(one)}(?![\w-])" for one in words))
    folders = ("simoffload", "simoffload_calibrate")
    paths = [path for folder in folders for path in (repository / folder).rglob("*.py")]
    return {path for path in paths if word.search(path.read_text())}


def test_recipes_touch_as_many_files_as_they_say(repository: Path) -> None:
    counted = 0
    for what, files, *rest in recipes(repository):
        number, _, instance = files.partition(": ")
        if instance:
            found = {len(files_with(repository, re.findall("`(.+?)`", instance)))}
        elif examples := [one for cell in rest for one in re.findall(r"\(examples/(.+?)\)", cell)]:
            found = {files_of_example(repository / "examples" / one) for one in examples}
        else:
            assert not number, what
            continue
        counted += 1
        assert found == {int(number)}, what
    assert counted >= 15


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout, built with no network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=repository, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_carries_the_package_and_its_data(repository: Path, wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    packages = [
        path for name in ("simoffload", "simoffload_calibrate") for path in tracked_files(repository, name)
    ]
    expected = {str(path.relative_to(repository)) for path in packages}
    for data in ["hardware_profiles", "scenarios", "traces"]:
        files = [str(path.relative_to(repository)) for path in tracked_files(repository, data)]
        assert files, f"{data} is empty"
        expected |= {f"simoffload/_data/{name}" for name in files}
    assert sorted(expected - names) == []
    assert "simoffload/py.typed" in expected
    assert not [name for name in names if name.startswith(("tests/", "validation/"))]
    assert Path(str(wheel.filename)).stat().st_size < LARGEST_WHEEL


def test_wheel_finds_its_data_away_from_the_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    program = (
        "import simoffload as so\n"
        "from simoffload.planning.confidence import confidence\n"
        "from simoffload.planning.compare import published_ratios\n"
        "print(so.__file__)\n"
        "print(so.load_platform('dgx-a100').machine().gpus, len(so.list_scenarios()) > 5)\n"
        "print(so.load_model('opt-1.3b').family)\n"
        "scenario = so.load_scenario('ddn/bloom-7b1')\n"
        "result = so.simulate(scenario)\n"
        "so.write_report(result, 'report.html')\n"
        "print(confidence(result).runs > 0, len(published_ratios(scenario, 'raid')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    home = str(tmp_path / "simoffload" / "__init__.py")
    assert result.stdout.splitlines() == [home, "8 True", "opt", "True 1"], result.stderr
    assert "<svg role=" in (tmp_path / "report.html").read_text()
