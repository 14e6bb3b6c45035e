"""Tests marked ``deepspeed`` run where DeepSpeed is installed and can compile; elsewhere they are skipped."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.calibration import real_runs
from tests.calibration.needs import PACKAGES, missing_tools

USE = "recorded_runs"


@pytest.fixture(scope="session")
def recorded_runs(tmp_path_factory: pytest.TempPathFactory) -> real_runs.Recorded:
    """All runs that the collected tests want."""
    return real_runs.record(tmp_path_factory.mktemp("runs"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, give all files that look at these runs to the same process."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    files = {path.name for path in Path(__file__).parent.glob("test_*.py") if USE in path.read_text("utf-8")}

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return USE if Path(file).name in files else file

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the test before any fixture starts a run."""
    if item.get_closest_marker("deepspeed") is None:
        return
    missing = [name for name in PACKAGES if find_spec(name) is None] or missing_tools()
    if missing:
        pytest.skip(f"needs {', '.join(missing)}; make test-deepspeed makes an environment with DeepSpeed")
