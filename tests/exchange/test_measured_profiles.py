"""Profiles from benchmarks in Python; ``tests/cli/test_import.py`` tests the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import simoffload
from simoffload.errors import InputError

DATA = Path(__file__).parent / "data/fio_seqread.json"
BASE = "micron-9400-pro-7.68tb"


def test_paths_may_be_text() -> None:
    profile = simoffload.import_profile("fio", [str(DATA)], identifier="mine", base=BASE)
    assert (profile.kind, profile.measured) == ("drive", ("read",))
    assert yaml.safe_load(profile.text)["read"]["value"] == "1016.547226 MB/s"


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(
        InputError,
        match='"foi" is not one of fio, ds-io, elbencho, nvbandwidth, llama-bench, aiconfigurator; did you '
        'mean "fio"',
    ):
        simoffload.import_profile("foi", [DATA], identifier="mine", base=BASE)
