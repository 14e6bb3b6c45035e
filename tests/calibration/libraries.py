"""Compile DeepSpeed's storage, optimizer and communication libraries for the CPU, with the Python of an
environment that has it: python libraries.py.

Nearly all of the time is that of PyTorch's headers. So a compiler that reads them from one precompiled file
comes first on PATH for as long as this runs. It leaves out debug information, optimization and PyTorch's
modules for C++, which DeepSpeed does not use. Where the headers cannot be precompiled, it takes longer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder
from torch.utils.cpp_extension import include_paths

FLAGS = ["-DTORCH_INDUCTOR_CPP_WRAPPER", "-g0", "-O0", "-march=native", "-fopenmp"]
"""What a precompiled header and the files that include it have in common; these come last and hold."""


def make_compiler(folder: Path) -> None:
    """Write a ``c++`` into the folder that includes PyTorch's headers first, and precompile them."""
    header, system = folder / "torch.h", shutil.which("c++")
    header.write_text("#include <torch/extension.h>\n")
    # Libraries depend on no header of the system: without this one, they are not compiled again.
    script = f'#!/bin/sh\nexec {system} -isystem "{folder}" -include torch.h "$@" {" ".join(FLAGS)}\n'
    (folder / "c++").write_text(script)
    (folder / "c++").chmod(0o755)
    found = [f"-isystem{path}" for path in (*include_paths("cpu"), sysconfig.get_path("include"))]
    command = [str(system), "-fPIC", "-std=c++20", *found, *FLAGS, "-x", "c++-header", str(header)]
    subprocess.run(command, check=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
        make_compiler(Path(folder))
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
        for builder in (AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder):
            builder().load(verbose=True)
