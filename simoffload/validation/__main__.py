"""``python -m simoffload.validation [--write PAGE] [ID…]``: predict published figures, print tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simoffload.validation.markdown import insert_tables, tables
from simoffload.validation.published import compare_published


def main() -> int:
    """Print the tables, or put them into a page between its marks."""
    parser = argparse.ArgumentParser(prog="python -m simoffload.validation", allow_abbrev=False)
    parser.add_argument("ids", metavar="ID", nargs="*", help="only figures whose id begins so, as ddn-fit")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="a Markdown page with the marks for the tables"
    )
    arguments = parser.parse_args()
    written = tables(compare_published(arguments.ids))
    if arguments.write is None:
        sys.stdout.write(written)
    else:
        arguments.write.write_text(insert_tables(arguments.write.read_text("utf-8"), written), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
