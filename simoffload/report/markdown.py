"""A report document as Markdown, for issues and wikis: what a terminal shows, and text to copy.

Both are blocks of code, in which names from files make no links, pictures, tags or tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from simoffload.errors import printable
from simoffload.exchange.files import replacing
from simoffload.report.document import ReportDocument
from simoffload.report.terminal import terminal_text


def write_markdown(document: ReportDocument, path: str | Path) -> None:
    """Write a report document to a Markdown file. Raises InputError if the file cannot be written."""
    with replacing(path) as file:
        file.write(markdown(document))


def markdown(document: ReportDocument) -> str:
    """Return the text of a terminal, and the listings that only a page shows."""
    return "\n".join(
        map(_block, (f"{printable(document.heading)}\n{terminal_text(document)}", *_copied(document)))
    )


def _copied(document: ReportDocument) -> Iterator[str]:
    for section in (*document.sections, *document.background):
        for listing in section.listings if section.page_only else ():
            lines = (printable(line) for line in listing.text.rstrip("\n").split("\n"))
            yield "\n".join((*lines, ""))


def _block(text: str) -> str:
    """Return text as a block of code, whatever backticks it has."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}{fence}\n"
