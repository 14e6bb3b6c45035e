"""``python -m simoffload.validation [--write PAGE] [--errors FILE] [ID…]``: predict what was published and
measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from simoffload.exchange.files import replacing
from simoffload.planning.confidence import csv_text
from simoffload.validation.errors_table import error_rows
from simoffload.validation.markdown import BEGIN, END, insert_tables, tables
from simoffload.validation.measured import MeasuredRun, compare_measured
from simoffload.validation.measured_tables import MEASURED_BEGIN, MEASURED_END, measured_tables
from simoffload.validation.plots import Plot, plots
from simoffload.validation.published import compare_published

_IMAGES = "images"


def main() -> int:
    """Print the tables, or put them into a page between its marks and plots into a folder beside it."""
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
    drawn: list[Plot] = []
    if only != "published":
        runs = compare_measured()
        written, drawn = _measured(runs)
        if arguments.errors:
            with replacing(arguments.errors) as file:
                file.write(csv_text(error_rows(runs)))
        sections[MEASURED_BEGIN, MEASURED_END] = written
    if only != "measured":
        sections[BEGIN, END] = tables(compare_published(arguments.ids))
    if arguments.write is None:
        sys.stdout.write("\n".join(sections.values()))
    else:
        _write(arguments.write, sections, drawn)
    return 0


def _measured(runs: Sequence[MeasuredRun]) -> tuple[str, list[Plot]]:
    drawn = list(plots(runs))
    images = [(f"{_IMAGES}/{name}", about) for name, about, _ in drawn]
    return measured_tables(runs, compare_measured(own_profile=False), images), drawn


def _write(page: Path, sections: dict[tuple[str, str], str], drawn: list[Plot]) -> None:
    text = page.read_text("utf-8")
    for (begin, end), written in sections.items():
        text = insert_tables(text, written, begin=begin, end=end)
    for name, _, svg in drawn:
        folder = page.parent / _IMAGES
        folder.mkdir(exist_ok=True)
        with replacing(folder / name) as file:
            file.write(svg)
    with replacing(page) as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main())
