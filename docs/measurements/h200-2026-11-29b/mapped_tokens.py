"""Tokens of llama.cpp from mapped files in little memory: mapped_tokens.py PROGRAM MODELS OUT SECONDS [FIRST]

PROGRAM is ``mapped_tokens.cpp``, MODELS a folder for the files, which ``../h100-2026-11-27/random_gguf.py``
writes where they are missing. The limit of the control group is a share of what the CPU reads, all experts of
the layers that are not on the GPU, and 0.22 GB for what no file backs. Needs root.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "h100-2026-11-27"))
import random_gguf

TINY = bool(os.environ.get("TINY"))
FILES = {"qwen3-30b-a3b": "q4_k_m", "gpt-oss-20b": "mxfp4"}
QWEN, OSS = FILES
EXTRA = 220_000_000 if not TINY else 60_000_000
CASES = (  # model, layers with experts on the CPU, memory over what the CPU reads, read-ahead [KiB] (0: own)
    (QWEN, 48, 9.0, 0),
    (QWEN, 48, 1.0, 0),
    (QWEN, 48, 0.9, 128),
    (OSS, 24, 9.0, 0),
    (OSS, 24, 1.0, 0),
    (OSS, 24, 0.9, 0),
    (QWEN, 48, 1.1, 0),
    (OSS, 24, 0.9, 128),
    (QWEN, 48, 0.9, 0),
    (OSS, 24, 1.1, 0),
    (QWEN, 48, 1.0, 128),
    (OSS, 24, 1.0, 128),
    (QWEN, 24, 1.0, 0),
    (OSS, 12, 1.1, 0),
    (QWEN, 24, 1.2, 128),
    (QWEN, 24, 0.9, 128),
    (OSS, 24, 0.75, 128),
    (OSS, 24, 1.2, 0),
    (QWEN, 48, 0.75, 128),
)
ROOT = Path("/tmp/cgroup")


def sizes(model, layers):
    """Return bytes of the file's tensors, and of experts in the first layers."""
    found = random_gguf.tensors(random_gguf.SHAPES[model] | ({"layers": 4} if TINY else {}), FILES[model])
    each = [(name, random_gguf.size(kind, dims)) for name, kind, dims in found]
    read = sum(size for name, size in each if "_exps" in name and int(name.split(".")[1]) < layers)
    return sum(size for _, size in each), read


def write(models):
    """Write the files that are missing, all at once; returns the seconds."""
    begin = time.time()
    writer = random_gguf.__file__
    few = ["--layers", "4"] if TINY else []
    lines = [
        [sys.executable, writer, name, form, str(models / f"{name}.gguf"), *few]
        for name, form in FILES.items()
        if not (models / f"{name}.gguf").exists()
    ]
    failed = sum(one.wait() != 0 for one in [subprocess.Popen(line) for line in lines])
    return {"seconds": round(time.time() - begin, 1), "failed": failed}


def group():
    """Return a control group whose memory can be limited, and the name of its limit, of either version."""
    old = Path("/sys/fs/cgroup/memory")
    if (old / "memory.limit_in_bytes").exists():
        (old / "tokens").mkdir(exist_ok=True)
        return old / "tokens", "memory.limit_in_bytes"
    ROOT.mkdir(exist_ok=True)
    if not (ROOT / "cgroup.procs").exists():
        subprocess.run(["mount", "-t", "cgroup2", "none", str(ROOT)], check=True)
    with contextlib.suppress(OSError):
        (ROOT / "cgroup.subtree_control").write_text("+memory")
    (ROOT / "tokens").mkdir(exist_ok=True)
    (ROOT / "tokens" / "memory.max").read_text()
    return ROOT / "tokens", "memory.max"


def statistics(place):
    """Return what the group's memory holds [B]."""
    with contextlib.suppress(OSError):
        text = (place / "memory.stat").read_text()
        names = "rss|cache|anon|file|kernel|pagetables|slab|workingset_refault_file|pgmajfault"
        names += "|active_file|inactive_file"
        return {name: int(size) for name, size in re.findall(rf"^({names}) (\d+)$", text, re.MULTILINE)}
    return {}


def run(program, path, case, place, seconds, threads):
    """Return what the program printed, with the group's memory after loading and at the end."""
    _, layers, share, _ = case
    seed = zlib.crc32(str(case).encode()) % 10_000
    command = [
        program,
        path,
        "99",
        str(layers),
        str(threads),
        "400" if share > 2 else "120",
        str(seconds),
        str(seed),
    ]
    shell = ["sh", "-c", f'echo $$ > {place}/cgroup.procs; exec "$@"', "sh", *map(str, command)]
    rows, memory = [], []
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        killer = threading.Timer(seconds + 50, process.kill)
        killer.start()
        for line in process.stdout:
            if line.startswith("{"):
                rows.append(json.loads(line))
                if len(rows) in (2, 3) or len(rows) % 20 == 0:
                    memory.append([len(rows), statistics(place)])
        memory.append([len(rows), statistics(place)])
        status = process.wait()
        killer.cancel()
        errors.seek(0)
        log = errors.read()
    kept = [line for line in log.splitlines() if re.search("buffer size|offloaded|error|failed|mmap", line)]
    return {
        "status": status,
        "rows": rows,
        "memory": memory,
        "log": kept[:30] if status == 0 else [log[-1500:]],
    }


def main(program, models, out, seconds, first="0"):
    until = time.time() + float(seconds)
    models, path, threads = Path(models), Path(out), len(os.sched_getaffinity(0))
    models.mkdir(exist_ok=True)
    record = (
        json.loads(path.read_text()) if path.exists() else {"what": __doc__.partition("\n")[0], "runs": []}
    )
    record.setdefault("writing", []).append(write(models))
    device = models.stat().st_dev
    ahead = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    usual = ahead.read_text().strip()
    record |= {"read_ahead_kb": usual, "threads": threads}
    try:
        place, limited = group()
    except (OSError, subprocess.CalledProcessError) as error:
        record["error"] = f"no control group: {error}"
        path.write_text(json.dumps(record))
        print(record["error"])
        return
    try:
        for case in CASES[int(first) :]:
            if time.time() > until - 30:
                record.setdefault("left_out", []).append(case)
                continue
            model, layers, share, kib = case
            file, read = sizes(model, layers)
            limit = int(share * read) + EXTRA
            name = (
                f"{model}, experts of {layers} layers on the CPU, memory {share:g}, read-ahead {kib or 'own'}"
            )
            half = "holdout" if zlib.crc32(name.encode()) % 3 == 0 else "fit"
            ahead.write_text(str(kib or usual))
            subprocess.run(["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], check=False)
            (place / limited).write_text(str(limit if share < 2 else 1 << 40))
            begin = time.time()
            length = 4 if share > 2 else min(int(os.environ.get("LENGTH", "14")), until - time.time() - 20)
            found = run(program, models / f"{model}.gguf", case, place, length, threads)
            found = {"name": name, "set": half, "file": file, "read": read, "limit": limit, **found}
            found |= {"read_ahead_kb": int(ahead.read_text()), "seconds": round(time.time() - begin, 1)}
            record["runs"].append(found)
            path.write_text(json.dumps(record, separators=(",", ":")))
            times = [one["s"] for one in found["rows"] if one["what"] == "token"]
            shown = [f"{one:.2f}" for one in (*times[:3], *times[-2:])]
            print(f"{name}: {found['status']}, {len(times)} tokens, {shown} {found['seconds']} s", flush=True)
    finally:
        ahead.write_text(usual)
    path.write_text(json.dumps(record, separators=(",", ":")))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        Path(sys.argv[2]).mkdir(exist_ok=True)
        print(write(Path(sys.argv[2])))
    else:
        main(*sys.argv[1:])
