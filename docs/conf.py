"""Documentation as a site (`make docs`): every page of the repository as it is, the Python interface, and the
notebooks with their tables and charts.

The source is the repository itself, so that a link between pages is the same in both.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

from simoffload import __version__

TOP = Path(__file__).parents[1]

project, author, release = "simoffload", "the simoffload developers", __version__
copyright = author  # noqa: A001  # the name that Sphinx reads
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/**", "notebooks/*.ipynb", "examples/*"]
exclude_patterns = ["**/.ipynb_checkpoints"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext", ".ipynb": "notebook"}
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a level that is left out is right on a page that reads well
html_theme = "furo"
html_title = f"simoffload {release}"
html_show_sourcelink = False
html_static_path, html_css_files = ["static"], ["wide.css"]
autodoc_default_options = {"members": True, "no-value": True, "show-inheritance": True}
autodoc_class_signature = "separated"  # results are not made by hand
CONTENTS = {
    "Start": "docs/tutorial docs/how-to docs/which-tool docs/page notebooks/*",
    "Questions": "docs/fit docs/explanations docs/costs docs/advise docs/reach docs/streams "
    "docs/sweeps docs/reports",
    "What is simulated": "docs/llama-cpp docs/kv-cache docs/checkpoints-and-data docs/limits",
    "Machines": "docs/profiles docs/CALIBRATION docs/measurements/*",
    "Reference": "docs/python docs/scenarios docs/reference/* docs/nomenclature",
    "Method": "docs/how-it-works docs/VALIDATION docs/validation/* docs/performance docs/decisions",
    "Project": "docs/index CHANGELOG CONTRIBUTING",
}
"""Pages of the table of contents, by its headings."""


def _with_contents(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add the table of contents to the first page, and name files that are not on the site."""
    if page == "README":
        for heading, pages in CONTENTS.items():
            options = f":hidden:\n:glob:\n:caption: {heading}\n"
            listed = "\n".join(f"/{one}" for one in pages.split())
            source[0] += f"\n```{{toctree}}\n{options}\n{listed}\n```\n"
    folder = (TOP / page).parent

    def link(found: re.Match[str]) -> str:
        """Return a link to a page, a picture or another site as it is; of other files, which are in the
        repository, only the text."""
        text, target = found[1], found[2].partition("#")[0]
        here = not target or ":" in target or target.endswith((".md", ".ipynb", ".svg", ".png"))
        return found[0] if here or not (folder / target).exists() else f"{text} (`{target}`)"

    source[0] = re.sub(r"(?<!!)\[([^]\[]+)\]\(([^)\s]+)\)", link, source[0])


class NotebookParser(MystParser):
    """A notebook as a page, with the outputs that are stored in it."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: Any) -> None:
        """Parse the cells with their outputs."""
        super().parse("\n\n".join(map(_cell, json.loads(inputstring)["cells"])), document)


def _cell(cell: Any) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return text
    return "\n\n".join([f"```python\n{text}\n```", *map(_output, cell["outputs"])])


def _output(output: Any) -> str:
    """Return an output as Markdown: text, a table, or a chart."""
    found = output.get("data", {"text/plain": output.get("text", "")})
    for kind, around in (("image/svg+xml", "{}"), ("text/html", '<div class="table-wrapper">{}</div>')):
        if kind in found:
            return f"```{{raw}} html\n{around.format(''.join(found[kind]))}\n```"
    return f"```text\n{''.join(found['text/plain'])}\n```"


def _with_index(app: Sphinx, failure: Exception | None) -> None:
    """Let the site begin at index.html, too."""
    if failure is None and app.builder.format == "html":
        shutil.copy(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the notebooks, and the table of contents."""
    app.add_source_parser(NotebookParser)
    app.connect("source-read", _with_contents)
    app.connect("build-finished", _with_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
