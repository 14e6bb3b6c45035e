"""``make test`` reports missing tools before it starts, and again instead of DeepSpeed's tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.calibration.needs import missing_tools, rendered


def test_one_line_installs_what_is_missing() -> None:
    assert rendered([]) == ""
    assert rendered(["Linux"]) == "DeepSpeed's storage library needs Linux"
    assert (
        rendered(["g++", "libaio-dev"])
        == "this machine has no g++, libaio-dev (Debian: apt install g++ libaio-dev)"
    )


def test_without_a_compiler_its_package_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert missing_tools()[0] == "g++"


@pytest.fixture
def no_header(tmp_path: Path) -> dict[str, str]:
    """A machine whose compiler finds no libaio.h."""
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    elsewhere = {name: value for name, value in os.environ.items() if name != "REQUIRE_DEEPSPEED"}
    return {**elsewhere, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.skipif(shutil.which("make") is None or sys.platform != "linux", reason="needs make on Linux")
def test_make_says_it_at_the_start_and_at_the_end(repository: Path, no_header: dict[str, str]) -> None:
    def make(*message: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--no-print-directory", f"PYTHON={sys.executable}", *message]
        return subprocess.run(
            command, cwd=repository, env=no_header, capture_output=True, text=True, check=False
        )

    (first,) = make("say-deepspeed").stderr.splitlines()
    assert first.startswith("make test: the DeepSpeed tests at the end will be skipped: this machine has no ")
    assert "libaio-dev" in first.partition("apt install ")[2]
    assert make("test-deepspeed").stderr == f"make test-deepspeed: skipped, {first.split(': ', 2)[2]}\n"
    assert make("test-deepspeed", "REQUIRE_DEEPSPEED=1").returncode != 0
    plan = make("--dry-run", "test").stdout
    assert 0 < plan.index("will be skipped") < plan.index("-m pytest")
    assert "will be skipped" not in make("--dry-run", "test", "PYTEST_ARGS=tests/test_layers.py").stdout
