"""``python -m validation`` predicts all measured and published figures and writes the files that report them.

These are README.md, docs/VALIDATION.md, docs/CALIBRATION.md and the pages of docs/validation between their
marks, drawings in docs/images, and the two tables of the package. ``python -m validation ID…`` prints only
the published figures whose id begins with ID, such as ddn-fit.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import get_args

from simoffload.planning.compare import PublishedRatio
from simoffload.planning.errors import calibration_errors, written
from simoffload_calibrate.compare import Errors
from validation.accuracy import (
    SUMMED,
    ByProfile,
    class_table,
    coverage,
    held_out,
    short_table,
    summary_table,
    summed,
)
from validation.figures import drawings
from validation.llama_cpp import llama_cpp_tables, observed_rates
from validation.llama_cpp_shares import observed_logs
from validation.measured import (
    MeasuredRun,
    Observed,
    Profile,
    compare_measured,
    error_rows,
    left_out,
    measured_machines,
    observed_runs,
)
from validation.measured_tables import measured_tables
from validation.published import compare_published, limits_met, published_tables, ratio_rows
from validation.recorded_streams import predicted_streams, streams_table
from validation.serving import observed_steps, serving_steps, serving_table

_ROOT = Path(__file__).parents[1]
_BEHIND = "docs/validation"
_ERRORS = "simoffload/planning/calibration_errors.csv"


def observed() -> Iterator[Observed]:
    """Yield all times of real runs whose errors are those of the table."""
    for profile in get_args(Profile):
        yield from observed_runs(measured(profile))
    yield from observed_steps(serving_steps())
    yield from observed_rates()
    yield from observed_logs()


@cache
def measured(profile: Profile) -> tuple[MeasuredRun, ...]:
    """Predict all recorded runs once."""
    return compare_measured(profile=profile)


def files() -> dict[str, str]:
    """Return the text of every other written file by its path in the repository."""
    by_profile = {profile: left_out(measured(profile)) for profile in get_args(Profile)}
    runs = by_profile["own"]
    drawn = drawings(runs)
    images = [(f"../images/{one.name}", one.about) for one in drawn]
    published = compare_published()
    parts = {
        ("docs/VALIDATION.md", "summary"): f"{summary(by_profile)}\n\n{limits_met(published)}\n",
        (f"{_BEHIND}/intervals.md", "intervals"): class_table(calibration_errors(), observed()),
        (f"{_BEHIND}/real-runs.md", "measured"): measured_tables(by_profile, measured_machines(), images),
        (f"{_BEHIND}/vllm.md", "serving"): serving_table(serving_steps()),
        (f"{_BEHIND}/vllm.md", "streams"): streams_table(predicted_streams()),
        (f"{_BEHIND}/llama-cpp.md", "llama.cpp"): llama_cpp_tables(),
        (f"{_BEHIND}/published.md", "tables"): published_tables(published),
        ("README.md", "accuracy"): f"{held_out(runs)}:\n\n{short_table(by_profile)}\n",
        ("docs/CALIBRATION.md", "coverage"): f"{coverage(by_profile)}\n",
    }
    pages: dict[str, str] = {}
    for (path, name), text in parts.items():
        pages[path] = inserted(pages.get(path) or (_ROOT / path).read_text("utf-8"), name, text)
    return {
        **pages,
        "simoffload/planning/published_ratios.csv": _csv(PublishedRatio._fields, ratio_rows()),
        **{f"docs/images/{one.name}": one.svg() for one in drawn},
    }


def summary(by_profile: ByProfile) -> str:
    """Return how far off the predictions of held-out times are, by program."""
    rows = [
        (title, work.errors(by_profile["shipped"]), work.errors(by_profile["own"]), "real-runs")
        for title, work in SUMMED.items()
    ]
    known = calibration_errors()

    def judged(times: Iterable[Observed], *, own: bool = False) -> Errors | None:
        held = [one for one in times if one.held_out and (one.compared.evidence == "own") == own]
        ends = (known.factors(one.compared, without=one.machine) for one in held)
        return summed(
            (one.ratio, low <= one.ratio <= high) for one, (low, high) in zip(held, ends, strict=True)
        )

    figures = [
        (measured / simulated, inside)
        for one in predicted_streams()
        if one.recorded.part == "holdout"
        for measured, simulated, inside in one.figures.values()
    ]
    rows += [
        ("vLLM: a step", judged(observed_steps(serving_steps())), None, "vllm"),
        ("vLLM: requests that arrive, TTFT and TPOT", summed(figures), None, "vllm"),
        (
            "llama.cpp: a token or a prompt",
            judged(observed_rates()),
            judged(observed_rates(), own=True),
            "llama-cpp",
        ),
    ]
    return summary_table(rows)


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
    _write(_ERRORS, written(error_rows(observed())))
    calibration_errors.cache_clear()  # intervals follow from these errors
    for path, text in files().items():
        _write(path, text)


def _write(path: str, text: str) -> None:
    (_ROOT / path).write_text(text, encoding="utf-8")
    sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
