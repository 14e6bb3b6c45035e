"""``python -m validation`` predicts all measured and published figures and writes the files that report them.

These are docs/VALIDATION.md between its marks, its drawings in docs/images, and the two tables of the
package. ``python -m validation ID…`` prints only the published figures whose id begins with ID, such as
ddn-fit.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from simoffload.planning.confidence import CalibrationError
from simoffload.planning.published_ratios import PublishedRatio
from validation.figures import drawings
from validation.measured import compare_measured, error_rows
from validation.measured_tables import measured_tables
from validation.published import compare_published, published_tables, ratio_rows

__all__ = ["files", "inserted"]

_ROOT = Path(__file__).parents[1]
_PAGE = "docs/VALIDATION.md"


def files() -> dict[str, str]:
    """Return the text of every written file by its path in the repository."""
    runs = compare_measured()
    drawn = drawings(runs)
    images = [(f"images/{one.name}", one.about) for one in drawn]
    page = (_ROOT / _PAGE).read_text("utf-8")
    page = inserted(page, "measured", measured_tables(runs, compare_measured(own_profile=False), images))
    page = inserted(page, "tables", published_tables(compare_published()))
    return {
        _PAGE: page,
        "simoffload/planning/calibration_errors.csv": _csv(CalibrationError._fields, error_rows(runs)),
        "simoffload/planning/published_ratios.csv": _csv(PublishedRatio._fields, ratio_rows()),
        **{f"docs/images/{one.name}": one.svg() for one in drawn},
    }


def inserted(page: str, name: str, text: str) -> str:
    """Replace the text between the two marks that name a part of a page.

    Raises ValueError for a page without these marks.
    """
    begin, end = f"<!-- {name}: written by python -m validation -->", f"<!-- end of {name} -->"
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f'the page lacks the marks "{begin}" and "{end}"')
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def _csv(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(head)
    table.writerows(rows)
    return written.getvalue()


def main(ids: Sequence[str]) -> None:
    """Write every file, or print the published figures with the given ids."""
    if ids:
        sys.stdout.write(published_tables(compare_published(ids)))
        return
    for path, text in files().items():
        (_ROOT / path).write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
