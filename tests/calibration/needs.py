"""What a machine needs before DeepSpeed can run on its CPU; prints what is missing: python needs.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PACKAGES = ("torch", "transformers", "deepspeed")


def missing_tools() -> list[str]:
    """What the compilation of DeepSpeed's storage library lacks."""
    if not sys.platform.startswith("linux"):
        return ["Linux"]
    missing = []
    compiler = shutil.which("c++")
    if compiler is None:
        missing.append("g++")
    elif subprocess.run(
        [compiler, "-fsyntax-only", "-x", "c++", "-include", "libaio.h", "/dev/null"],
        capture_output=True,
        check=False,
    ).returncode:
        missing.append("libaio-dev")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append("python3-dev")
    return missing


if __name__ == "__main__":
    print(*missing_tools(), sep=", ")
