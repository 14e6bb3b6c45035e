"""Tests marked ``deepspeed`` run where DeepSpeed is installed and can compile; elsewhere they are skipped."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.calibration import real_runs
from tests.calibration.needs import PACKAGES, missing_tools


@pytest.fixture(scope="session")
def recorded_runs(tmp_path_factory: pytest.TempPathFactory) -> real_runs.Recorded:
    """All runs that the collected tests want."""
    return real_runs.record(tmp_path_factory.mktemp("runs"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests of the same runs, and of the same file, in one process if there are several
    (``--dist loadgroup``)."""
    for item in items:
        if item.get_closest_marker("deepspeed") is not None:
            shared = "recorded_runs" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("recorded runs" if shared else item.path.name))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the test before any fixture starts a run."""
    if item.get_closest_marker("deepspeed") is None:
        return
    missing = [name for name in PACKAGES if find_spec(name) is None] or missing_tools()
    if missing:
        pytest.skip(f"needs {', '.join(missing)}; make test-deepspeed makes an environment with DeepSpeed")
