"""Measure generation from mapped files with less memory than they need (llama.cpp built without CUDA).

``python faults.py BIN MODELS OUT SECONDS`` needs the programs of ``../h100-2026-11-27/build.sh`` built with
``-DGGML_CUDA=OFF`` (llama-bench, host_reads), a control group and root. Sets as in ``measure.py``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "h100-2026-11-27"))
import measure

DENSE, EXPERTS = "llama-3.1-8b-q4_k_m", "qwen3-30b-a3b-q4_k_m"
CASES = [(DENSE, 24), (DENSE, 4), (EXPERTS, 32), (EXPERTS, 12), (EXPERTS, 16), (DENSE, 3), (EXPERTS, 8)]
"""Models, and the GiB of the control group: files are 4.6 and 17.3 GiB."""


def main() -> None:
    """Measure all cases."""
    programs, models, out, seconds = sys.argv[1:]
    measured = measure.Measurement(Path(programs).absolute(), Path(models), Path(out), float(seconds))
    measured.add(part="machine", **measure.machine())
    writer = Path(measure.__file__).with_name("random_gguf.py")
    names = (DENSE, EXPERTS)
    lines = [
        [sys.executable, str(writer), *measure.FILES[n], str(measured.models / f"{n}.gguf")] for n in names
    ]
    failed = sum(p.wait() != 0 for p in [subprocess.Popen(line) for line in lines])
    measured.add(part="models", failed=failed)
    print(f"{measured.left:.0f} s left, models {failed} failed", flush=True)
    root = Path("/tmp/cgroup")
    root.mkdir(exist_ok=True)
    if not (root / "cgroup.procs").exists():
        subprocess.run(["mount", "-t", "cgroup2", "none", str(root)], check=False)
    group = root / "few"
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
    for model, gib in CASES:
        if measured.left < 25:
            return
        subprocess.run(["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], check=False)
        (group / "memory.max").write_text(str(gib << 30))
        count = [_counters()]
        measured.bench(f"faults, limit {gib} GiB", model, f"-ngl 0 -t {16}", "-p 0 -n 4 -r 2", shell)
        count.append(_counters())
        measured.add(part="faults", name=f"{model} {gib}", counters=count)


def _counters() -> dict[str, int]:
    text = Path("/proc/vmstat").read_text()
    names = ("pgmajfault", "pgpgin", "workingset_refault_file", "pgscan_direct", "pgscan_kswapd")
    found = {name: re.search(rf"^{name} (\d+)", text, re.MULTILINE) for name in names}
    return {name: int(one[1]) for name, one in found.items() if one}


if __name__ == "__main__":
    main()
