"""Measure which pages of a mapped file Linux keeps, if memory has room for a part of what each step reads.

``python mapped_steps.py PROGRAM FILE GROUP READ_AHEAD OUT [SECONDS]``: the program of mapped_steps.c,
a file of 6 GB, the folder of a control group for memory (version 1), the file ``read_ahead_kb`` of the drive.
The set of a case is that of a hash of its name, written before the first run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from itertools import product
from pathlib import Path

MODELS = {
    "dense": (256 << 20, 8, 0, 0, 0),
    "experts of Qwen3-30B": (10_000_000, 8, 128, 8, 884_736),
    "experts of gpt-oss-20b": (20_000_000, 7, 32, 4, 4_406_400),
}
"""Bytes of a dense layer, layers, experts, those chosen, and bytes of a matrix; each has three."""
COLD = 2_600_000_000
SHARES = (0.5, 0.75, 0.9, 1.0, 1.1, 1.2)
STEPS, SECONDS, THREADS = 60, 14, 4


def main() -> None:
    """Measure all cases, in an order by the hash."""
    program, file, group, ahead, out, *most = sys.argv[1:]
    until = time.monotonic() + float((most or ["3000"])[0])
    cases = [
        (model, cold, share, kib)
        for model, cold, share, kib in product(MODELS, (0, COLD), SHARES, (128, 8192))
        if cold or share in (0.5, 0.9, 1.0)
    ]
    with Path(out).open("a") as results:
        results.write(
            json.dumps({"kernel": os.uname().release, "cores": os.cpu_count(), "threads": THREADS}) + "\n"
        )
        for case in sorted(cases, key=lambda case: zlib.crc32(repr(case).encode())):
            if time.monotonic() > until:
                return
            model, cold, share, kib = case
            name = f"{model}, {'with' if cold else 'without'} cold pages, {share}, {kib} KiB"
            dense, layers, experts, chosen, matrix = MODELS[model]
            hot = layers * (dense + 3 * experts * matrix)
            limit = int(share * hot)
            Path(ahead).write_text(str(kib))
            with Path(file).open("rb") as mapped:
                os.posix_fadvise(mapped.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            Path(group, "memory.limit_in_bytes").write_text(str(limit))
            numbers = [
                cold,
                dense,
                layers,
                experts,
                chosen,
                matrix,
                THREADS,
                STEPS,
                SECONDS,
                zlib.crc32(name.encode()),
            ]
            line = [program, file, *map(str, numbers)]
            shell = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
            done = subprocess.run(shell + line, capture_output=True, text=True, check=False)
            record = {
                "name": name,
                "set": "fit" if zlib.crc32(name.encode()) % 2 == 0 else "holdout",
                "model": model,
                "hot": hot,
                "cold": cold,
                "limit": limit,
                "read_ahead_kb": kib,
                "chosen": layers * (dense + 3 * chosen * matrix),
                "status": done.returncode,
                "rows": [json.loads(row) for row in done.stdout.splitlines()],
            }
            results.write(json.dumps(record) + "\n")
            results.flush()
            steps = [row for row in record["rows"] if row["what"] == "step"]
            last = steps[len(steps) // 2 :]
            if record["set"] == "fit" and last:
                read, seconds = (sum(row[key] for row in last) / len(last) for key in ("read", "seconds"))
                print(name, len(steps), f"{read / 1e6:.0f} MB {seconds:.3f} s", done.stderr, flush=True)


main()
