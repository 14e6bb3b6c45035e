"""``python -m simoffload.validation [--write PAGE] [--errors FILE] [ID…]``: predict what was published and
measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simoffload.exchange.files import replacing
from simoffload.planning.confidence import csv_text
from simoffload.validation.errors_table import error_rows
from simoffload.validation.figures import captions
from simoffload.validation.markdown import BEGIN, END, insert_tables, tables
from simoffload.validation.measured import compare_measured
from simoffload.validation.measured_tables import MEASURED_BEGIN, MEASURED_END, measured_tables
from simoffload.validation.published import compare_published

_IMAGES = "images"
"""The folder of the figures, beside the page; docs/figures.py draws them."""


def main() -> int:
    """Print the tables, or put them into a page between its marks."""
    parser = argparse.ArgumentParser(prog="python -m simoffload.validation", allow_abbrev=False)
    parser.add_argument("ids", metavar="ID", nargs="*", help="only figures whose id begins so, as ddn-fit")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="a Markdown page with the marks for the tables"
    )
    parser.add_argument(
        "--only", choices=("published", "measured"), help="leave the other tables as they are"
    )
    parser.add_argument(
        "--errors", type=Path, metavar="FILE", help="also write errors on real runs as the shipped table"
    )
    arguments = parser.parse_args()
    only = arguments.only or ("published" if arguments.ids else None)
    sections: dict[tuple[str, str], str] = {}
    if only != "published":
        runs = compare_measured()
        images = [(f"{_IMAGES}/{name}", about) for name, about in captions(runs)]
        if arguments.errors:
            with replacing(arguments.errors) as file:
                file.write(csv_text(error_rows(runs)))
        shipped = compare_measured(own_profile=False)
        sections[MEASURED_BEGIN, MEASURED_END] = measured_tables(runs, shipped, images)
    if only != "measured":
        sections[BEGIN, END] = tables(compare_published(arguments.ids))
    if arguments.write is None:
        sys.stdout.write("\n".join(sections.values()))
    else:
        _write(arguments.write, sections)
    return 0


def _write(page: Path, sections: dict[tuple[str, str], str]) -> None:
    text = page.read_text("utf-8")
    for (begin, end), written in sections.items():
        text = insert_tables(text, written, begin=begin, end=end)
    with replacing(page) as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main())
