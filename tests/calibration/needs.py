"""What a machine needs before DeepSpeed can run on its CPU; prints what is missing and what installs it, in
one line, or nothing: python needs.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PACKAGES = ("torch", "transformers", "deepspeed")


def missing_tools() -> list[str]:
    """Return what is missing to compile DeepSpeed's storage library."""
    if not sys.platform.startswith("linux"):
        return ["Linux"]
    missing = []
    compiler = shutil.which("c++")
    if compiler is None:
        # Nobody can ask it for the header, which is only found in the usual place.
        missing += ["g++", *([] if Path("/usr/include/libaio.h").exists() else ["libaio-dev"])]
    elif subprocess.run(
        [compiler, "-fsyntax-only", "-x", "c++", "-include", "libaio.h", "/dev/null"],
        capture_output=True,
        check=False,
    ).returncode:
        missing.append("libaio-dev")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append("python3-dev")
    return missing


def rendered(missing: list[str]) -> str:
    """Return one line about what is missing; empty if nothing is."""
    if not missing:
        return ""
    if missing == ["Linux"]:
        return "DeepSpeed's storage library needs Linux"
    return f"this machine has no {', '.join(missing)} (Debian: apt install {' '.join(missing)})"


if __name__ == "__main__":
    if sentence := rendered(missing_tools()):
        print(sentence)
