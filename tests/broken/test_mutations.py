"""Whatever is done to a good file, the program answers with a verdict or with problems, never by breaking."""

from __future__ import annotations

import contextlib
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simoffload.cli import main
from tests.broken.slips import DRIVE, DS_CONFIG, PLATFORM, SCENARIO

GOOD = {"s.yaml": SCENARIO, "d.yaml": DRIVE, "p.yaml": PLATFORM, "ds.json": DS_CONFIG}
VALUES = [
    *("-1", "0", "2.5", "1e18", "1e400", ".nan", "9" * 25, "true", "null", "[]", "{}", '""', "'\\u0000'"),
    *("&a", "*a", "!!set", "40 GB", "../../x", "é", "\t", "- ", "? ", "gpu", "hbm", "resident"),
]


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str, str]:
    """A file with one or two of its words replaced, or a piece of it cut out, doubled or moved."""
    name = draw(st.sampled_from(sorted(GOOD)))
    text = GOOD[name]
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.booleans()):
            words = text.split(" ")
            words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from(VALUES) | st.text(max_size=6))
            text = " ".join(words)
        else:
            start, length = draw(st.integers(0, len(text))), draw(st.integers(0, 40))
            piece, rest = text[start : start + length], text[:start] + text[start + length :]
            place = draw(st.integers(0, len(rest)))
            text = draw(st.sampled_from([rest, text + piece, rest[:place] + piece + rest[place:]]))
    return name, text


@given(mutations())
@settings(max_examples=250)
def test_no_mutation_breaks_the_program(
    tmp_path_factory: pytest.TempPathFactory, mutated: tuple[str, str]
) -> None:
    name, text = mutated
    folder = tmp_path_factory.mktemp("mutated")
    (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["check", name])
    assert status in {0, 2}, f"{text}\n{err.getvalue()}"
    assert "internal error" not in err.getvalue()
    assert bool(out.getvalue()) == (status == 0)
