"""Whatever a user gives as a name of a file: a verdict or one short line, never a mistake of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.errors import InputError
from tests.broken.slips import SCENARIO

LONG = "n" * 300
"""More than the 255 bytes that Linux gives the name of a file."""
LONGEST_LINE = 700
"""[characters] the names that are known included."""
DDN = "ddn/bloom-7b1"
AXIS = ("--axis", "workload.batch_size=1,2")

COMMANDS = {
    "run": ("run", LONG),
    "run-yaml": ("run", f"{LONG}.yaml"),
    "run-path": ("run", f"{LONG}/{LONG}"),
    "fit": ("fit", LONG),
    "compare": ("compare", LONG, DDN),
    "advise": ("advise", LONG),
    "sweep": ("sweep", LONG, *AXIS),
    "check": ("check", LONG),
    "models-show": ("models", "show", LONG),
    "models-show-json": ("models", "show", f"{LONG}.json"),
    "profiles-show": ("profiles", "show", LONG),
    "profiles-show-path": ("profiles", "show", f"{LONG}/{LONG}"),
    "profiles-show-kind": ("profiles", "show", f"drive/{LONG}"),
    "profiles-check": ("profiles", "check", LONG),
    "model": ("run", "s.yaml", "--set", f"model={LONG}"),
    "config": ("run", "s.yaml", "--set", f"model={{config: {LONG}}}"),
    "platform": ("run", "s.yaml", "--set", f"platform={LONG}"),
    "platform-path": ("run", "s.yaml", "--set", f"platform=x/{LONG}.yaml"),
    "tier": ("run", "s.yaml", "--set", f"strategy.weights={LONG}"),
    "ds_config": ("run", "s.yaml", "--set", f"strategy.ds_config={LONG}"),
    "equipment": ("run", "s.yaml", "--set", f"equipment.accelerator=x/{LONG}"),
    "costs": ("run", "s.yaml", "--costs", LONG),
    "output": ("run", "s.yaml", "--output-dir", LONG),
    "on-tier": ("compare", "s.yaml", "--on", LONG),
    "on-platform": ("compare", "s.yaml", "--on", f"x/{LONG}:dram"),
    "sweep-output": ("sweep", "s.yaml", *AXIS, "-o", f"{LONG}.csv"),
    "sweep-journal": ("sweep", "s.yaml", *AXIS, "-o", f"{'n' * 250}.csv"),
    "import-output": ("profiles", "import", "fio", "x", "--id", "x", "-o", f"{LONG}.yaml"),
    "micro-output": ("calibrate", "micro", "-o", LONG),
    "micro-record": ("calibrate", "micro", "-o", "out", "--from-json", LONG),
    "runs": ("calibrate", "compare", LONG),
    "command": (LONG,),
    "option": ("run", "s.yaml", f"--{LONG}"),
}


@pytest.mark.parametrize("argv", COMMANDS.values(), ids=COMMANDS)
def test_a_name_that_is_too_long_is_one_short_line(
    argv: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SCENARIO)
    status = main(argv)
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert LONG not in err
    assert len(err) < LONGEST_LINE
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.yaml"]


def _linked(folder: Path) -> str:
    (folder / "loop.yaml").symlink_to("loop.yaml")
    return str(folder / "loop.yaml")


NAMES = {
    "long": lambda _folder: f"{LONG}.yaml",
    "nul": lambda _folder: "a\0b.yaml",
    "surrogate": lambda _folder: "a\ud800.yaml",
    "loop": _linked,
    "below-a-file": lambda folder: str(folder / "s.yaml" / "x.yaml"),
    "long-without-suffix": lambda _folder: LONG,
    "nul-without-suffix": lambda _folder: "a\0b",
}
READERS: dict[str, Callable[[str], object]] = {
    "scenario": so.load_scenario,
    "platform": so.load_platform,
    "platform-path": lambda name: so.load_platform(Path(name)),
    "model": so.load_model,
    "config": lambda name: so.load_model({"config": name}),
    "config-in-folder": lambda name: so.load_model({"config": name}, root=Path()),
    "costs": so.load_costs,
    "import": lambda name: so.import_profile("fio", [name], identifier="x", base="pny-cs3040-2tb"),
    "target": lambda name: so.on_targets(so.load_scenario(DDN), [f"{name}:dram"]),
}


@pytest.mark.parametrize("name", NAMES)
def test_no_name_is_more_than_wrong_input(name: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    text = NAMES[name](tmp_path)
    for what, read in READERS.items():
        with pytest.raises(InputError) as caught:
            read(text)
        rendered = str(caught.value)
        assert rendered.isprintable(), (what, rendered)
        assert LONG not in rendered, what


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(InputError, match=r"scenario: cannot be used: Permission denied$"):
        so.load_scenario(str(tmp_path / "scenario"))
    with pytest.raises(InputError, match=r"scenario.yaml: cannot be read: Permission denied$"):
        so.load_scenario(str(tmp_path / "scenario.yaml"))
