"""Measure llama.cpp on a machine with a GPU: placements, load modes, threads and memory.

Needs the programs of ``build.sh`` and the files that ``random_gguf.py`` writes (``models`` writes them).
Every part appends to one JSON file as soon as it has a result, and stops at its deadline.

The sets are split by name, before anything is measured: a configuration, which is a model, a placement
and a load mode, is held out if ``set_of`` says so. All prompts, generations and depths of
it are then held out with it.

Usage: python measure.py BIN MODELS OUT SECONDS PART…  with parts of ``PARTS``, in their order.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FILES: dict[str, list[str]] = {  # name of the file: arguments of random_gguf.py
    "llama-3.1-8b-q4_k_m": ["llama-3.1-8b", "q4_k_m"],
    "llama-3.1-8b-q8_0": ["llama-3.1-8b", "q8_0"],
    "qwen3-30b-a3b-q4_k_m": ["qwen3-30b-a3b", "q4_k_m"],
    "gpt-oss-20b-mxfp4": ["gpt-oss-20b", "mxfp4"],
    "qwen3-24-layers-q8_0": ["qwen3-30b-a3b", "q8_0", "--layers", "24"],
}
SPARSE: dict[str, list[str]] = {  # files full of holes, for placements alone
    "llama-3.3-70b-q4_k_m": ["llama-3.3-70b", "q4_k_m"],
    "gpt-oss-120b-mxfp4": ["gpt-oss-120b", "mxfp4"],
    "qwen3-235b-a22b-q4_k_m": ["qwen3-235b-a22b", "q4_k_m"],
    "llama-3.2-3b-q8_0": ["llama-3.2-3b", "q8_0"],
    "qwen3-30b-a3b-q8_0": ["qwen3-30b-a3b", "q8_0"],
}
BOTH = "-p 512,2048 -n 32 -ub 512,2048 -r 2"
GENERATION = "-p 0 -n 32 -r 2"
DEEP = "-p 512 -n 32 -d 8192 -ub 2048 -r 2"
Q8B, Q8B8, QWEN, OSS, HALF = FILES

# One line a run: model, placement (the configuration), tests. The order is that of importance.
RUNS: dict[str, list[tuple[str, str, str]]] = {
    "resident": [
        (model, "-ngl 99", "-p 512,2048 -n 64 -ub 512,2048 -r 3") for model in (Q8B, QWEN, OSS, Q8B8, HALF)
    ]
    + [(model, "-ngl 99", DEEP) for model in (Q8B, QWEN, OSS)],
    "experts": [(QWEN, f"-ngl 99 -ncmoe {n}", BOTH) for n in (48, 24, 12, 36, 6)]
    + [(OSS, f"-ngl 99 -ncmoe {n}", BOTH) for n in (24, 12, 6, 18, 3)]
    + [(HALF, f"-ngl 99 -ncmoe {n}", BOTH) for n in (24, 12)],
    "layers": [(Q8B, f"-ngl {n}", BOTH) for n in (16, 0, 8, 24)]
    + [(Q8B8, f"-ngl {n}", BOTH) for n in (16, 0)]
    + [(QWEN, f"-ngl {n}", BOTH) for n in (24, 0)]
    + [(OSS, f"-ngl {n}", BOTH) for n in (12, 0)],
    "threads": [(Q8B, f"-ngl 0 -t {t}", GENERATION) for t in (8, 4)]
    + [(QWEN, f"-ngl 99 -ncmoe 48 -t {t}", GENERATION) for t in (8, 4, 2)]
    + [(OSS, f"-ngl 99 -ncmoe 24 -t {t}", GENERATION) for t in (8, 4)]
    + [(Q8B8, f"-ngl 0 -t {t}", GENERATION) for t in (8, 4)],
    "modes": [
        (QWEN, "-ngl 99 -ncmoe 48 -lm none", BOTH),
        (OSS, "-ngl 99 -ncmoe 24 -lm none", BOTH),
        (Q8B, "-ngl 0 -lm none", BOTH),
        (QWEN, "-ngl 99 -ncmoe 48 -nopo 1", "-p 512 -n 32 -r 2"),
        (Q8B, "-ngl 0 -nopo 1", "-p 512 -n 32 -r 2"),
        (OSS, "-ngl 99 -ncmoe 24 -nopo 1", "-p 512 -n 32 -r 2"),
        (Q8B, "-ngl 0 -lm none --no-host 1", "-p 512 -n 32 -r 2"),
        (QWEN, "-ngl 99 -ncmoe 48 -lm none --no-host 1", "-p 512 -n 32 -r 2"),
        (Q8B, "-ngl 99 -nkvo 1", "-p 512 -n 32 -d 0,2048 -r 2"),
    ],
    "deep": [
        (Q8B, "-ngl 16", DEEP),
        (QWEN, "-ngl 99 -ncmoe 24", DEEP),
        (OSS, "-ngl 99 -ncmoe 12", DEEP),
        (Q8B, "-ngl 0", "-p 0 -n 16 -d 8192 -ub 2048 -r 2"),
    ],
    "prompts": [
        (QWEN, "-ngl 99 -ncmoe 48", "-p 16,31,32,64,128,256 -n 0 -r 2"),
        (Q8B, "-ngl 0", "-p 16,31,32,64,128,256 -n 0 -r 2"),
        (OSS, "-ngl 99 -ncmoe 24", "-p 16,31,32,64,128,256 -n 0 -r 2"),
    ],
}
FITTED = [(QWEN, 8), (OSS, 8), (Q8B, 4), (QWEN, 12), (Q8B8, 6), (OSS, 6), (QWEN, 16), (HALF, 10)]
"""Models that ``--fit`` places and that are run so, and the GiB of GPU memory that it may take."""
PLACED = [
    (model, room, context)
    for model, rooms in {
        Q8B: (3, 4, 6),
        QWEN: (5, 8, 12, 16, 24),
        OSS: (4, 6, 8, 12),
        "llama-3.3-70b-q4_k_m": (12, 24, 48),
        "gpt-oss-120b-mxfp4": (6, 12, 24, 48),
        "qwen3-235b-a22b-q4_k_m": (12, 24, 48),
        "llama-3.2-3b-q8_0": (2, 4),
        "qwen3-30b-a3b-q8_0": (8, 16, 24),
    }.items()
    for room in rooms
    for context in (8192, 0)
]
"""Placements by ``llama-fit-params``: model, GiB of GPU memory, context (0: unset)."""
KEPT = re.compile(
    r"buffer size|graph|offloaded|override|fit|project|leave|layers|MiB|n_ctx +=|n_ubatch|flash|mmap|lock",
    re.IGNORECASE,
)
FIELDS = [
    "n_prompt",
    "n_gen",
    "n_depth",
    "n_batch",
    "n_ubatch",
    "n_threads",
    "n_gpu_layers",
    "n_cpu_moe",
    "load_mode",
    "no_kv_offload",
    "no_op_offload",
    "no_host",
    "flash_attn",
    "fit_target",
    "samples_ns",
]


def set_of(name: str) -> str:
    """Return the set of a configuration: two of five are held out, and not those that calibrate a machine."""
    if name in (f"{Q8B} -ngl 99", f"{QWEN} -ngl 99"):
        return "fit"
    return "holdout" if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 5 < 2 else "fit"


def output(command: Sequence[str], limit: float) -> tuple[str, str, float, int]:
    """Return what a command wrote to both streams, its seconds and its status (124: too long)."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, errors="replace", timeout=max(limit, 1)
        )
        streams, status = (done.stdout, done.stderr), done.returncode
    except subprocess.TimeoutExpired as stopped:
        both = (stopped.stdout or b"", stopped.stderr or b"")
        streams, status = (both[0].decode(errors="replace"), both[1].decode(errors="replace")), 124
    return *streams, round(time.monotonic() - start, 2), status


def log_of(text: str) -> list[str]:
    """Return the lines of a log that say something about memory and placement, each once."""
    return list(
        dict.fromkeys(line.strip() for line in text.splitlines() if KEPT.search(line) and len(line) < 240)
    )


def sizes(lines: str) -> dict[str, float]:
    """Return the MiB of buffers by their kind and place, such as ``{"KV CUDA0": 64.0}``."""
    found: dict[str, float] = {}
    for place, kind, mib in re.findall(r": +(\S+) +(\w+) buffer size = +([\d.]+) MiB", lines):
        found[f"{kind} {place}"] = round(found.get(f"{kind} {place}", 0) + float(mib), 2)
    return found


class Measurement:
    """All parts of a measurement of one machine."""

    def __init__(self, programs: Path, models: Path, out: Path, seconds: float) -> None:
        self.programs, self.models, self.out = programs, models, out
        self.end = time.monotonic() + seconds
        self.results: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []

    def add(self, **result: Any) -> None:
        """Add a result and write all of them."""
        self.results.append(result | {"at": time.strftime("%FT%TZ", time.gmtime())})
        self.out.write_text("[\n" + ",\n".join(json.dumps(r) for r in self.results) + "\n]\n")

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()

    def bench(self, part: str, model: str, placement: str, tests: str, prefix: Sequence[str] = ()) -> None:
        """Run llama-bench on one placement."""
        words = placement.split()
        if "-t" not in words:
            words += ["-t", str(os.cpu_count())]
        command = [
            str(self.programs / "llama-bench"),
            "-m",
            str(self.models / f"{model}.gguf"),
            "-o",
            "jsonl",
            "-v",
        ]
        stdout, stderr, seconds, status = output(
            [*prefix, *command, *words, *tests.split()], min(self.left, 150)
        )
        loaded, *contexts = re.split(r"constructing llama_context", stderr)
        found = []
        for line, context in zip(
            filter(lambda s: s.startswith("{"), stdout.splitlines()), contexts, strict=False
        ):
            row = json.loads(line)
            kept = {field: row.get(field) for field in FIELDS} | {"buffers": sizes(context)}
            graph = re.search(r"graph.*?: (nodes = .*)", context)
            found.append(kept | {"graph": graph.group(1) if graph else None})
        name = f"{model} {placement}"
        self.add(
            part=part,
            name=name,
            set=set_of(name),
            tests=found,
            buffers=sizes(loaded),
            seconds=seconds,
            status=status,
            arguments=[*words, *tests.split()],
            log=log_of(loaded)[-60:],
            end=stderr[-300:] if status else None,
        )
        print(f"{self.left:5.0f} {status} {seconds:5.1f} s {set_of(name):7} {name} | {tests}", flush=True)

    def runs(self, part: str) -> None:
        """Run all placements of a part."""
        for model, placement, tests in RUNS[part]:
            if self.left > 20:
                self.bench(part, model, placement, tests)

    def fitted(self, free: float) -> None:
        """Run models where ``--fit`` has to choose, with ``free`` MiB of GPU memory."""
        for model, room in FITTED:
            if self.left > 20:
                self.bench(
                    "fitted",
                    model,
                    f"-fitt {int(free - room * 1024)}",
                    BOTH.replace("-ub 512,2048", "-ub 512"),
                )

    def placed(self, free: float) -> None:
        """Record what ``--fit`` chooses, and what it says that it allocates."""
        for model, room, context in PLACED:
            if self.left < 10:
                return
            command = [str(self.programs / "llama-fit-params"), "-m", str(self.models / f"{model}.gguf")]
            given = ["-fitt", str(int(free - room * 1024)), *(["-c", str(context)] if context else [])]
            chosen, log, seconds, status = output([*command, *given, "-lv", "4"], 60)
            memory = output([*command, *shlex.split(chosen), "-fitp", "on"], 60)[0] if status == 0 else ""
            name = f"{model} fit {room} GiB context {context}"
            self.add(
                part="placed",
                name=name,
                set=set_of(name),
                chosen=chosen.strip(),
                memory=memory.split("\n"),
                arguments=given,
                log=log_of(log)[-80:],
                seconds=seconds,
                status=status,
            )
            print(f"{self.left:5.0f} {status} {seconds:5.1f} s {name}: {chosen.strip()[:90]}", flush=True)

    def lines(self, part: str, *command: str, limit: float = 150) -> None:
        """Add the JSON lines that a program prints."""
        program = str(self.programs / command[0])
        stdout, stderr, seconds, status = output([program, *command[1:]], min(self.left, limit))
        rows = [
            json.loads(line) for line in stdout.splitlines() if line.startswith("{") and line.endswith("}")
        ]
        self.add(part=part, command=" ".join(command), rows=rows, seconds=seconds, status=status)
        print(
            f"{self.left:5.0f} {status} {seconds:5.1f} s {' '.join(command)} {len(rows)} {stderr[-200:]}",
            flush=True,
        )

    def probe(self) -> None:
        """Measure the speed of the machine itself: memory, and one model that both devices compute."""
        self.lines("probe", "host_reads", "memory", "1")
        self.bench("probe", Q8B, "-ngl 16", "-p 512 -n 32 -ub 512 -r 3")

    def costs(self) -> None:
        """Measure the parts: reads, copies, changes of device and products."""
        self.lines("costs", "host_reads", "memory", "4")
        self.lines("costs", "host_reads", "file", str(self.models / f"{Q8B8}.gguf"))
        self.lines("costs", "ggml_costs", "copies")
        self.lines("costs", "ggml_costs", "changes", str(os.cpu_count()))
        self.lines("costs", "ggml_costs", "products", "cpu", str(os.cpu_count()))
        self.lines("costs", "ggml_costs", "products", "gpu")
        self.lines("costs", "ggml_costs", "products", "cpu", "8", "0.1")
        self.lines("costs", "ggml_costs", "products", "cpu", "1", "0.02")

    def faults(self) -> None:
        """Generate with less memory than the file has, in a control group, and measure page faults."""
        for model in (Q8B, QWEN):
            self.lines("faults", "host_reads", "faults", str(self.models / f"{model}.gguf"), limit=60)
            break
        group = Path("/tmp/cgroup/few")
        try:
            group.parent.mkdir(exist_ok=True)
            if not (group.parent / "cgroup.procs").exists():
                subprocess.run(["mount", "-t", "cgroup2", "none", str(group.parent)], check=True)
            (group.parent / "cgroup.subtree_control").write_text("+memory")
            group.mkdir(exist_ok=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.add(part="faults", error=str(error))
            return
        shell = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
        for model, placement, gib in (
            (Q8B, "-ngl 0", 4),
            (QWEN, "-ngl 99 -ncmoe 48", 12),
            (Q8B, "-ngl 0", 8),
        ):
            if self.left < 30:
                return
            subprocess.run(["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], check=False)
            (group / "memory.max").write_text(str(gib << 30))
            before = Path("/proc/vmstat").read_text()
            self.bench(f"faults, limit {gib} GiB", model, placement, "-p 0 -n 4 -r 2", shell)
            after = Path("/proc/vmstat").read_text()
            names = ("pgmajfault", "pgpgin", "workingset_refault_file")
            count = {
                n: [int(re.search(rf"^{n} (\d+)", t, re.MULTILINE)[1]) for t in (before, after)]
                for n in names
            }  # type: ignore[index]
            self.add(part="faults", name=f"{model} {placement} {gib}", counters=count)

    def write_models(self) -> None:
        """Write all files, several at a time."""
        writer = Path(__file__).with_name("random_gguf.py")
        start = time.monotonic()
        every = [(name, FILES[name]) for name in (QWEN, HALF, OSS, Q8B8, Q8B)]
        every += [(name, [*given, "--sparse"]) for name, given in SPARSE.items()]
        running = []
        for name, (shape, quantization, *rest) in every:
            path = self.models / f"{name}.gguf"
            if not path.exists():
                line = [sys.executable, str(writer), shape, quantization, str(path), *rest]
                running.append(subprocess.Popen(line))
        failed = sum(process.wait() != 0 for process in running)
        self.add(part="models", failed=failed, seconds=round(time.monotonic() - start, 1))
        print(f"{self.left:5.0f} models {time.monotonic() - start:.1f} s, {failed} failed", flush=True)


PARTS = [
    "models",
    "probe",
    "placed",
    "costs",
    "resident",
    "experts",
    "layers",
    "threads",
    "modes",
    "deep",
    "prompts",
    "fitted",
    "faults",
]


def machine() -> dict[str, str]:
    """Return what the machine says about itself."""
    commands = {
        "lscpu": "lscpu",
        "memory": "head -3 /proc/meminfo; cat /sys/kernel/mm/transparent_hugepage/enabled; ulimit -l; df -h / /tmp /dev/shm",  # noqa: E501
        "kernel": "uname -a; cat /etc/os-release | head -2; grep . /sys/block/*/queue/read_ahead_kb",
        "gpu": "nvidia-smi; nvidia-smi -q | head -200",
        "nvcc": "nvcc --version | tail -2; c++ --version | head -1",
    }
    return {
        name: subprocess.run(["sh", "-c", c], check=False, capture_output=True, text=True).stdout
        for name, c in commands.items()
    }


def free_memory() -> float:
    """Return the MiB of GPU memory that are free."""
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])
    except (OSError, subprocess.CalledProcessError):
        return 0.0


def main() -> None:
    """Measure the parts that were asked for."""
    programs, models, out, seconds, *parts = sys.argv[1:]
    measured = Measurement(Path(programs).absolute(), Path(models), Path(out), float(seconds))
    if not measured.results:
        measured.add(part="machine", **machine())
    free = free_memory()
    special: dict[str, Callable[[], None]] = {
        "models": measured.write_models,
        "probe": measured.probe,
        "costs": measured.costs,
        "faults": measured.faults,
        "fitted": lambda: measured.fitted(free),
        "placed": lambda: measured.placed(free),
    }
    for part in parts:
        if measured.left > 20:
            special.get(part, lambda part=part: measured.runs(part))()  # type: ignore[misc]


if __name__ == "__main__":
    main()
