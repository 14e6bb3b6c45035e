"""The examples of the documentation are checked by the program itself."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

import simoffload
from simoffload.cli import main

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def test_examples_of_scenarios_and_profiles_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for example in BLOCK.findall((DOCS / "profiles.md").read_text()):
        name = re.match(r"# (\S+)\n", example)
        assert name is not None
        (tmp_path / name.group(1)).write_text(example)
    (tmp_path / "s.yaml").write_text(BLOCK.findall((DOCS / "scenarios.md").read_text())[0])
    (tmp_path / "ds_config.json").write_text('{"zero_optimization": {"offload_param": {"buffer_size": 5e8}}}')
    monkeypatch.chdir(tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert main(["check", *files]) == 0, capsys.readouterr().err
    assert main(["run", "s.yaml"]) == 0
    assert "array 59.9 GB of 46.1 TB in all" in " ".join(capsys.readouterr().out.split())


def test_every_scenario_of_the_reference_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = BLOCK.findall((DOCS / "scenarios.md").read_text())
    shipped = [block for block in blocks if "platform: my-machine.yaml" not in block]
    assert len(shipped) == 7
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(shipped):
        (tmp_path / f"{number}.yaml").write_text(block)
        assert main(["check", f"{number}.yaml"]) == 0, capsys.readouterr().err


def test_the_reference_of_python_begins_with_what_is_used_first_and_has_every_name() -> None:
    names = re.findall(r"^\.\. auto\w+:: (\w+)$", (DOCS / "python.rst").read_text(), re.MULTILINE)
    assert names[:3] == ["simulate", "question", "load_scenario"]
    assert sorted(names) == sorted(simoffload.__all__)


def test_the_example_of_the_reference_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "python.rst").read_text()
    (example,) = re.findall(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", page, re.MULTILINE)
    exec(compile(textwrap.dedent(example), "python.rst", "exec"), {})
    assert re.fullmatch(r"[\d.]+ GPU compute\n", capsys.readouterr().out)


def test_every_law_names_a_test_that_exists() -> None:
    laws = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "invariants.md").read_text())
    assert len(laws) == 16
    for path, name in laws:
        assert f"def {name}(" in (DOCS.parent / path).read_text(), (path, name)


TOP = DOCS.parent
PAGES = [*TOP.glob("*.md"), *DOCS.rglob("*.md")]
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """What a link may have behind #: a heading in lower case, without punctuation, with - for each space."""
    titles = HEADING.findall(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(TOP)))
def test_links_lead_somewhere(path: Path) -> None:
    for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)\s]+))?\)", path.read_text()):
        page = path.parent / target if target else path
        assert target.startswith("https://") or page.exists(), target
        if anchor and page.suffix == ".md":
            assert anchor in _anchors(page), f"{target}#{anchor}"
