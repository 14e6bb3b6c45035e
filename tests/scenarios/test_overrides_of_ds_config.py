"""Keys of a ds_config that is a file, set on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload.errors import InputError
from simoffload.scenario import read_scenario

SCENARIO = """\
name: small
model: bloom-560m
platform: dgx-a100
workload: {batch_size: 2, prompt_length: 8, output_length: 4}
strategy: {ranks: 2, weights: raid, ds_config: ds.json}
"""
KEY = "strategy.ds_config.zero_optimization.offload_param"


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    text = '{"zero_optimization": {"offload_param": {"buffer_size": 4e9, "buffer_count": 7}}}'
    (tmp_path / "ds.json").write_text(text)
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return path


def test_one_key_changes_and_the_file_says_the_rest(scenario_file: Path) -> None:
    scenario = read_scenario(scenario_file, overrides=[f"{KEY}.buffer_size=2e9"])
    settings = scenario.plan().placement.settings
    assert (settings.buffer_size, settings.buffer_count) == (2_000_000_000, 7)


def test_another_file_is_still_named_by_its_path(scenario_file: Path) -> None:
    with pytest.raises(InputError, match=r"nope\.json: no such file"):
        read_scenario(scenario_file, overrides=["strategy.ds_config=nope.json"])


def test_a_file_that_is_missing_is_said_before_its_keys(scenario_file: Path) -> None:
    (scenario_file.parent / "ds.json").unlink()
    with pytest.raises(InputError, match=r"ds\.json: no such file"):
        read_scenario(scenario_file, overrides=[f"{KEY}.buffer_size=2e9"])
