"""Measure llama.cpp on two GPUs of one host: how it divides models, and how fast.

``python two_gpus.py BIN MODELS OUT SECONDS PART…`` needs the programs of ``../h100-2026-11-27/build.sh``; the
files, sets and parts are those of ``measure.py``, the runs those below. ``placed`` and ``fitted`` let
``--fit`` choose with so much memory on each GPU, or on one after the other.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "h100-2026-11-27"))
import measure
from measure import BOTH, GENERATION, OSS, Q8B, Q8B8, QWEN

SHORT = "-p 512,2048 -n 64 -ub 512 -r 3"
RUNS = {
    "divided": [
        (Q8B, "-ngl 99 -dev CUDA0", SHORT),
        (Q8B, "-ngl 99", SHORT),
        (Q8B, "-ngl 99 -sm row", SHORT),
        (QWEN, "-ngl 99 -dev CUDA0", SHORT),
        (QWEN, "-ngl 99", SHORT),
        (OSS, "-ngl 99 -dev CUDA0", SHORT),
        (OSS, "-ngl 99", SHORT),
        (Q8B8, "-ngl 99", SHORT),
        (Q8B8, "-ngl 99 -sm row", SHORT),
        (Q8B, "-ngl 99 -sm tensor", SHORT),
        (Q8B, "-ngl 99 -ts 3/1", SHORT),
        (QWEN, "-ngl 99 -sm row", SHORT),
    ],
    "partly": [
        (QWEN, "-ngl 99 -ncmoe 48 -dev CUDA0", BOTH),
        (QWEN, "-ngl 99 -ncmoe 24", BOTH),
        (OSS, "-ngl 99 -ncmoe 24 -dev CUDA0", BOTH),
        (OSS, "-ngl 99 -ncmoe 12", BOTH),
        (Q8B, "-ngl 16", BOTH),
        (QWEN, "-ngl 99 -ncmoe 24 -dev CUDA0", BOTH),
        (Q8B, "-ngl 0 -dev CUDA0", BOTH),
        (Q8B, "-ngl 16 -dev CUDA0", BOTH),
        (QWEN, "-ngl 24", BOTH),
        (QWEN, "-ngl 99 -ncmoe 36", GENERATION),
        (OSS, "-ngl 99 -ncmoe 6", GENERATION),
        (Q8B, "-ngl 8", GENERATION),
        (Q8B8, "-ngl 16", GENERATION),
    ],
}
FITTED = [(QWEN, 5), (OSS, 4), (Q8B, 2.5), (Q8B8, 4)]
"""Models that ``--fit`` places and that are run so, and the GiB of each GPU that it may take."""
PLACED = [
    (model, rooms, context)
    for model, of_it in {
        Q8B: ((2, 2), (3, 1.5), (1.5, 3)),
        QWEN: ((4, 4), (6, 6), (8, 3), (3, 8)),
        OSS: ((3, 3), (5, 5), (6, 2)),
        "llama-3.3-70b-q4_k_m": ((12, 12), (24, 24), (24, 12), (12, 24)),
        "gpt-oss-120b-mxfp4": ((12, 12), (24, 24), (24, 8), (8, 24)),
        "qwen3-235b-a22b-q4_k_m": ((12, 12), (24, 24), (48, 24)),
        "qwen3-30b-a3b-q8_0": ((8, 8), (12, 24)),
    }.items()
    for rooms in of_it
    for context in (8192, 0)
]
"""Placements by ``llama-fit-params``: model, GiB of each GPU, context (0: unset)."""


def place(measured: measure.Measurement, free: float) -> None:
    """Record what ``--fit`` chooses for both GPUs, and what it says that it allocates."""
    for model, rooms, context in PLACED:
        if measured.left < 10:
            return
        command = [str(measured.programs / "llama-fit-params"), "-m", str(measured.models / f"{model}.gguf")]
        margins = ",".join(str(int(free - room * 1024)) for room in rooms)
        given = ["-fitt", margins, *(["-c", str(context)] if context else [])]
        chosen, log, seconds, status = measure.output([*command, *given, "-lv", "4"], 60)
        memory = ""
        if status == 0:
            memory = measure.output([*command, *shlex.split(chosen), "-fitp", "on"], 60)[0]
        name = f"{model} fit {rooms[0]} and {rooms[1]} GiB context {context}"
        measured.add(
            part="placed",
            name=name,
            set=measure.set_of(name),
            chosen=chosen.strip(),
            memory=memory.split("\n"),
            arguments=given,
            log=measure.log_of(log)[-80:],
            seconds=seconds,
            status=status,
        )
        print(f"{measured.left:5.0f} {status} {seconds:5.1f} s {name}: {chosen.strip()[:90]}", flush=True)


def main() -> None:
    """Measure the parts that were asked for."""
    programs, models, out, seconds, *parts = sys.argv[1:]
    measured = measure.Measurement(Path(programs).absolute(), Path(models), Path(out), float(seconds))
    if not measured.results:
        measured.add(part="machine", **measure.machine())
    measure.RUNS, measure.FITTED = RUNS, FITTED
    free = measure.free_memory()
    for part in parts:
        if measured.left < 20:
            continue
        if part == "placed":
            place(measured, free)
        elif part == "fitted":
            measured.fitted(free)
        elif part == "probe":
            measured.probe()
        elif part == "models":
            measured.write_models()
        else:
            measured.runs(part)


if __name__ == "__main__":
    main()
