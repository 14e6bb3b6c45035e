"""The documentation builds as a site without a warning, with every public name, where Sphinx is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import simoffload

for needed in ("sphinx", "furo", "myst_parser"):
    pytest.importorskip(needed, reason=f"{needed} is not installed (make docs installs it)")

TOP = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_site_builds_and_has_all(tmp_path: Path) -> None:
    options = ["-q", "-W", "-c", "docs"]
    subprocess.run([sys.executable, "-m", "sphinx", *options, ".", str(tmp_path)], cwd=TOP, check=True)
    built = {page.relative_to(tmp_path).with_suffix("") for page in tmp_path.rglob("*.html")}
    folders = ("docs/*.md", "docs/reference/*.md", "docs/validation/*.md", "notebooks/*.ipynb")
    pages = [page for one in folders for page in TOP.glob(one)]
    assert {page.relative_to(TOP).with_suffix("") for page in pages} <= built
    documented = set(re.findall(r'id="simoffload\.(\w+)"', (tmp_path / "docs/python.html").read_text()))
    assert set(simoffload.__all__) - documented == set()
    contents = (tmp_path / "index.html").read_text()
    assert [page.stem for page in pages if f"{page.stem}.html" not in contents] == []
