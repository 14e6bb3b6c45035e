"""Whatever is done to a good file, the program answers with a verdict or with problems, never by breaking."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simoffload.cli import main
from tests.broken.slips import DRIVE, DS_CONFIG, PLATFORM, SCENARIO
from tests.broken.training import TRAINING

SWEEP = """\
sweep:
  axes:
    workload.batch_size: {choices: [1, 2]}
    strategy.ranks: {range: {min: 1, max: 2, step: 1}}
  constraints: ["batch_size * ranks <= 4"]
"""
COSTS = """\
kind: costs
id: mine
name: Our prices
date: 2026-11-20
source: our orders
electricity: 0.3
devices:
  drive/samsung-980-pro-2tb: {price: 100}
"""
CONFIG = '{"model_type": "bloom", "n_layer": 2, "n_head": 8, "n_embed": 64, "vocab_size": 100}'
GOOD = {
    "s.yaml": SCENARIO,
    "t.yaml": TRAINING,
    "w.yaml": SCENARIO + SWEEP,
    "d.yaml": DRIVE,
    "p.yaml": PLATFORM,
    "c.yaml": COSTS,
    "ds.json": DS_CONFIG,
    "config.json": CONFIG,
}
LONG = "n" * 300
LONGEST_LINE = 2300
"""[characters] of a problem with its file and key."""
VALUES = [
    *("-1", "0", "2.5", "1e18", "1e400", ".nan", "9" * 25, "true", "null", "[]", "{}", '""', "'\\u0000'"),
    *(
        LONG,
        "[1]",
        "{a: {b: 1}}",
        "5 s",
        "x: y",
        "a b " * 100,
        "../" + LONG,
        "\u202e",
        "{config: config.json}",
    ),
    *("&a", "*a", "!!set", "40 GB", "../../x", "é", "\t", "- ", "? ", "gpu", "hbm", "resident"),
]


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str, str]:
    """A file with one or two of its words replaced, or a piece of it cut out, doubled or moved."""
    name = draw(st.sampled_from(sorted(GOOD)))
    text = GOOD[name]
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.booleans()):
            argv = text.split(" ")
            argv[draw(st.integers(0, len(argv) - 1))] = draw(st.sampled_from(VALUES) | st.text(max_size=6))
            text = " ".join(argv)
        else:
            start, length = draw(st.integers(0, len(text))), draw(st.integers(0, 40))
            piece, rest = text[start : start + length], text[:start] + text[start + length :]
            place = draw(st.integers(0, len(rest)))
            text = draw(st.sampled_from([rest, text + piece, rest[:place] + piece + rest[place:]]))
    return name, text


def answered(argv: list[str], files: dict[str, bytes], folder: Path) -> int:
    """The status of a command in a folder with files; what it says must be fit to read."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(argv)
    rendered = err.getvalue()
    assert status in {0, 2, 3}, f"{argv}\n{files}\n{rendered}"
    assert "internal error" not in rendered
    assert bool(out.getvalue()) == (status != 2)
    assert all(line.isprintable() and len(line) <= LONGEST_LINE for line in rendered.splitlines()), rendered
    assert LONG not in rendered
    return status


@given(mutations())
@settings(max_examples=250)
def test_no_mutation_breaks_the_program(
    tmp_path_factory: pytest.TempPathFactory, mutated: tuple[str, str]
) -> None:
    name, text = mutated
    answered(
        ["check", name], {name: text.encode("utf-8", "surrogatepass")}, tmp_path_factory.mktemp("mutated")
    )


KEYS = [
    *("workload.batch_size", "strategy.weights", "strategy.ds_config", "strategy.ds_config.aio", "platform"),
    *("model", "model.n_layer", "profiles.x.read", "equipment.tiers", "equipment.accelerator", "nodes"),
    *("sweep", "strategy", "checkpoint", "x", "[0]", "model[0].x", LONG, "\udcff", "a\0", "", "."),
]
ARGUMENTS = [
    *VALUES,
    LONG,
    "\udcff",
    "a\0",
    "\ud800",
    "",
    ",",
    "=",
    ":",
    "raid",
    ":dram",
    f"x/{LONG}:dram",
    "s.yaml/x",
]
COMMANDS = [
    ["fit", "s.yaml", "--set", "KEY=VALUE"],
    ["fit", "t.yaml", "--set", "KEY=VALUE"],
    ["fit", "s.yaml", "--on=VALUE"],
    ["fit", "VALUE"],
    ["models", "show", "VALUE"],
    ["profiles", "show", "VALUE"],
    ["profiles", "import", "fio", "VALUE", "--id", "x", "--from=VALUE"],
    ["sweep", "w.yaml", "--dry-run", "--axis", "KEY=VALUE"],
    ["sweep", "w.yaml", "--dry-run", "--constraint=batch_size + VALUE < 3"],
    ["run", "s.yaml", "--costs=VALUE", "--timeout=VALUE"],
    ["calibrate", "micro", "--from-json=VALUE", "-o", "VALUE"],
    ["calibrate", "compare", "VALUE", "--platform=VALUE"],
    ["VALUE", "VALUE"],
]


@given(st.sampled_from(COMMANDS), st.sampled_from(KEYS), st.sampled_from(ARGUMENTS))
@settings(max_examples=60)
def test_no_argument_breaks_the_program(
    tmp_path_factory: pytest.TempPathFactory, command: list[str], key: str, value: str
) -> None:
    argv = [word.replace("KEY", key).replace("VALUE", value) for word in command]
    files = {name: text.encode() for name, text in GOOD.items()}
    answered(argv, files, tmp_path_factory.mktemp("arguments"))
