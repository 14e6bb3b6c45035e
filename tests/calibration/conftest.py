"""Tests marked ``deepspeed`` run where DeepSpeed is installed and can compile; elsewhere they are skipped."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.calibration.needs import PACKAGES, missing_tools


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the test before any fixture starts a run."""
    if item.get_closest_marker("deepspeed") is None:
        return
    missing = [name for name in PACKAGES if find_spec(name) is None] or missing_tools()
    if missing:
        pytest.skip(f"needs {', '.join(missing)}; make test-deepspeed makes an environment with DeepSpeed")
