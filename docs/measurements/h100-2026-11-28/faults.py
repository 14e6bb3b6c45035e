"""Measure generation from mapped files with less memory than they need.

``python faults.py BIN MODELS OUT SECONDS BUILD [FIRST]`` needs llama-bench and host_reads of
``../h100-2026-11-27/build.sh``, a control group and root. BUILD is ``cuda``, or ``cpu`` for programs that
were built with ``-DGGML_CUDA=OFF``; ``ahead`` is of ``cuda``, with other read-aheads of the
drive. Sets as in ``measure.py``, of the name with its limit.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "h100-2026-11-27"))
import measure

DENSE, EXPERTS, OSS = "llama-3.1-8b-q4_k_m", "qwen3-30b-a3b-q4_k_m", "gpt-oss-20b-mxfp4"
ON_CPU = "-ngl 99 -ncmoe 99"
CASES = {
    "cpu": [
        (model, "-ngl 0", gib, 4, 2)
        for model, gib in (
            (DENSE, 24),
            (DENSE, 4),
            (EXPERTS, 32),
            (EXPERTS, 12),
            (EXPERTS, 16),
            (DENSE, 3),
            (EXPERTS, 8),
        )
    ],
    "cuda": [
        (DENSE, "-ngl 0", 24, 8, 4),
        (EXPERTS, ON_CPU, 32, 8, 4),
        (OSS, ON_CPU, 32, 8, 4),
        (DENSE, "-ngl 0", 4, 4, 2),
        (EXPERTS, ON_CPU, 12, 4, 4),
        (OSS, ON_CPU, 8, 4, 4),
        (EXPERTS, ON_CPU, 16, 4, 6),
        (OSS, ON_CPU, 10, 4, 6),
        (DENSE, "-ngl 16", 2, 4, 3),
        (EXPERTS, ON_CPU, 8, 4, 2),
        (EXPERTS, "-ngl 0", 14, 4, 4),
        (OSS, ON_CPU, 6, 4, 2),
        (OSS, "-ngl 0", 9, 4, 4),
        (EXPERTS, "-ngl 99 -ncmoe 24", 6, 4, 4),
        (DENSE, "-ngl 16", 3, 4, 4),
        (OSS, "-ngl 99 -ncmoe 12", 4, 4, 4),
        (EXPERTS, ON_CPU, 18, 4, 8),
        (DENSE, "-ngl 0", 5, 4, 4),
    ],
    "ahead": [
        (EXPERTS, ON_CPU, 12, 4, 2),
        (OSS, ON_CPU, 6, 4, 2),
        (EXPERTS, ON_CPU, 12, 4, 2, 128),
        (OSS, ON_CPU, 6, 4, 2, 128),
        (EXPERTS, ON_CPU, 8, 2, 2),
        (OSS, ON_CPU, 8, 4, 3),
        (EXPERTS, ON_CPU, 8, 4, 2, 128),
        (DENSE, "-ngl 0", 4, 4, 2),
        (EXPERTS, ON_CPU, 10, 4, 2),
        (EXPERTS, ON_CPU, 12, 4, 2, 1024),
        (OSS, ON_CPU, 8, 4, 3, 128),
        (OSS, ON_CPU, 7, 4, 2),
        (DENSE, "-ngl 0", 4, 4, 2, 128),
    ],
}
"""Models, placements, GiB of the control group (files are 4.6, 17.3 and 11.3 GiB), tokens and repetitions,
and what ``read_ahead_kb`` of the drive is set to, if it is not left alone."""


def main() -> None:
    """Measure all cases."""
    programs, models, out, seconds, build, *first = sys.argv[1:]
    measured = measure.Measurement(Path(programs).absolute(), Path(models), Path(out), float(seconds))
    measured.add(part="machine", **measure.machine())
    writer = Path(measure.__file__).with_name("random_gguf.py")
    names = list(dict.fromkeys(case[0] for case in CASES[build]))
    lines = [
        [sys.executable, str(writer), *measure.FILES[n], str(measured.models / f"{n}.gguf")]
        for n in names
        if not (measured.models / f"{n}.gguf").exists()
    ]
    failed = sum(p.wait() != 0 for p in [subprocess.Popen(line) for line in lines])
    measured.add(part="models", failed=failed)
    print(f"{measured.left:.0f} s left, models {failed} failed", flush=True)
    root = Path("/tmp/cgroup")
    root.mkdir(exist_ok=True)
    if not (root / "cgroup.procs").exists():
        subprocess.run(["mount", "-t", "cgroup2", "none", str(root)], check=False)
    group, device = root / "few", measured.models.stat().st_dev
    try:
        (root / "cgroup.subtree_control").write_text("+memory")
        group.mkdir(exist_ok=True)
    except OSError as error:
        measured.add(part="faults", error=str(error))
        print("no control group:", error, flush=True)
        return
    subprocess.run(["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], check=False)
    measured.lines("faults", "host_reads", "faults", str(measured.models / f"{DENSE}.gguf"), limit=40)
    shell = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    ahead = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    usual = ahead.read_text().strip()
    for model, placement, gib, tokens, repetitions, *kib in CASES[build][int((first or [0])[0]) :]:
        if measured.left < 25:
            return
        if CASES[build] is CASES["ahead"]:
            ahead.write_text(str(kib[0]) if kib else usual)
        subprocess.run(["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], check=False)
        (group / "memory.max").write_text(str(gib << 30))
        count = [_counters()]
        with _watched(group) as most:
            tests = f"-p 0 -n {tokens} -r {repetitions}"
            measured.bench(f"faults, limit {gib} GiB", model, placement, tests, shell)
        count.append(_counters())
        name = f"{model} {placement} {gib}"
        measured.add(
            part="faults",
            name=name,
            set=measure.set_of(name),
            counters=count,
            memory=most,
            read_ahead_kb=int(ahead.read_text()),
        )
    ahead.write_text(usual)


@contextmanager
def _watched(group: Path) -> Iterator[dict[str, int]]:
    """Keep the most anonymous memory and page cache [B] that a control group has had, four times a second."""
    most: dict[str, int] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.25):
            for name, size in re.findall(
                r"^(anon|file) (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE
            ):
                most[name] = max(most.get(name, 0), int(size))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        done.set()
        watcher.join()


def _counters() -> dict[str, int]:
    text = Path("/proc/vmstat").read_text()
    names = ("pgmajfault", "pgpgin", "workingset_refault_file", "pgscan_direct", "pgscan_kswapd")
    found = {name: re.search(rf"^{name} (\d+)", text, re.MULTILINE) for name in names}
    return {name: int(one[1]) for name, one in found.items() if one}


if __name__ == "__main__":
    main()
