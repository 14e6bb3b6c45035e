"""A key of ds_config is declared in one place, also outside the package: every command knows it then."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TOP = HERE.parents[1]
SCENARIO = """\
name: fork
model: opt-125m
platform: dgx-a100
workload: {{batch_size: 1, prompt_length: 8, output_length: 2}}
strategy:
  ranks: 1
  deepspeed_version: "{version}"
  ds_config:
    zero_optimization:
      stage: 3
      {key}
"""


def program(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of simoffload in the program that declares the key."""
    command = [sys.executable, str(HERE / "outside_key.py"), *words]
    return subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(TOP)}, text=True, capture_output=True, check=False
    )


def written(folder: Path, key: str, version: str = "0.19.8") -> None:
    (folder / "s.yaml").write_text(SCENARIO.format(key=key, version=version))


def exported(folder: Path) -> dict[str, Any]:
    found = program("run", "s.yaml", "--json", folder=folder)
    assert found.returncode == 0, found.stderr
    config: dict[str, Any] = json.loads(found.stdout)["provenance"]["exports"]["ds_config.json"]
    return config["zero_optimization"]


@pytest.mark.parametrize(
    ("key", "version", "expected"),
    [
        ("gather_threads: 4", "0.19.8", 4),
        ("gather_threads: null", "0.19.8", 2),
        ("overlap_comm: true", "0.18.0", 1),
    ],
)
def test_it_is_read_and_exported_with_the_default_of_the_version(
    tmp_path: Path, key: str, version: str, expected: int
) -> None:
    written(tmp_path, key, version)
    zero = exported(tmp_path)
    assert zero["gather_threads"] == expected
    assert "gather_window" not in zero


def test_a_value_of_another_type_is_refused_where_it_is_written(tmp_path: Path) -> None:
    written(tmp_path, "gather_threads: 65")
    found = program("check", "s.yaml", folder=tmp_path)
    assert found.returncode == 2
    message = "must be at most 64, got 65"
    assert f"s.yaml:11:23: strategy.ds_config.zero_optimization.gather_threads: {message}" in found.stderr
    written(tmp_path, "gather_thread: 2")
    assert 'did you mean "gather_threads"?' in program("check", "s.yaml", folder=tmp_path).stderr


def test_what_is_not_simulated_is_told(tmp_path: Path) -> None:
    written(tmp_path, "gather_window: 2")
    told = program("check", "s.yaml", folder=tmp_path)
    assert told.returncode == 0
    assert (
        "zero_optimization.gather_window: 2 is not modelled; one window is assumed"
        in told.stderr + told.stdout
    )


def test_schema_and_reference_have_it(tmp_path: Path) -> None:
    schema = json.loads(program("schema", "scenario", folder=tmp_path).stdout)
    key = schema["$defs"]["ZeroSection"]["properties"]["gather_threads"]
    meaning = "Threads of a rank that gather parameters; None: 2 from version 0.19.0 on, else 1."
    assert key["description"] == meaning
    script = (
        "import runpy, outside_key; from simoffload.cli.schemas import schema_of; "
        f"section = runpy.run_path({str(TOP / 'docs' / 'generate.py')!r})['_section']; "
        "print(section(schema_of('scenario'), 'ZeroSection'))"
    )
    paths = {"PYTHONPATH": f"{TOP}:{HERE}"}
    page = subprocess.run(
        [sys.executable, "-c", script], env=paths, text=True, capture_output=True, check=True
    ).stdout
    assert f"| `gather_threads` | integer, 1 to 64 | none | {meaning} |" in page
    assert page.count("`gather_window`") == 1
