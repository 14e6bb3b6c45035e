"""Compile DeepSpeed's storage, optimizer and communication libraries for the CPU, with the Python of an
environment that has it: python libraries.py.

Nearly all of the time is that of headers of PyTorch, which each of nineteen sources includes. So a compiler
that takes all sources of a library as one comes first on PATH for as long as this runs: the source that names
the Python module includes the others, whose own objects are empty. It leaves out debug information,
optimization and PyTorch's modules for C++, which DeepSpeed does not use.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder
from deepspeed.ops.op_builder.cpu import PinMemoryBuilder

BUILDERS = (PinMemoryBuilder, AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder)
COMPILER = """#!/bin/sh
for word in "$@"; do
    case $before in -c) source=${{word##*/}} ;; -o) object=$word ;; -MF) headers=$word ;; esac
    before=$word
done
if [ -z "$source" ]; then
    exec {system} "$@"
elif [ -f "{folder}/$source.h" ]; then
    exec {system} -isystem "{folder}" -include "$source.h" "$@" \\
        -DTORCH_INDUCTOR_CPP_WRAPPER -g0 -O0 -march=native -fopenmp
fi
: >"$headers"
exec {system} -x c -c /dev/null -o "$object"
"""
"""A header of the system is none that libraries depend on: without it, they are not compiled again."""


def make_compiler(folder: Path) -> None:
    """Write a ``c++`` into the folder, and for each library a header with all of its sources but one."""
    for builder in BUILDERS:
        sources = [Path(builder().deepspeed_src_path(name)) for name in builder().sources()]
        (module,) = (path for path in sources if "PYBIND11_MODULE" in path.read_text())
        headers = sorted({header for path in sources for header in path.parent.glob("*.h")})
        parts = ["#include <torch/extension.h>\n", *(f'#import "{path}"\n' for path in headers)]
        parts += (_included(path) for path in sources if path != module)
        (folder / f"{module.name}.h").write_text("".join(parts))
    (folder / "c++").write_text(COMPILER.format(system=shutil.which("c++"), folder=folder))
    (folder / "c++").chmod(0o755)


def _included(path: Path) -> str:
    """Return the lines that include a source, with its own variables, which others may have, too, renamed."""
    own = re.findall(r"^(?:static|const) (?:const )?[\w:]+ (\w+)(?: =|;)", path.read_text(), re.MULTILINE)
    names = "".join(f"#define {name} {name}_of_{path.stem}\n" for name in own)
    return f'{names}#include "{path}"\n' + "".join(f"#undef {name}\n" for name in own)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
        make_compiler(Path(folder))
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
        for builder in BUILDERS:
            builder().load(verbose=True)
