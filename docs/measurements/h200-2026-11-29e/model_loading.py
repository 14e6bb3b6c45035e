"""Weights from a local disk in host memory and in the GPU: model_loading.py FILE SECONDS FOLDER

Raw rates of the disk (O_DIRECT by block and threads; buffered, cold and warm), then the ways in which weights
are loaded: safetensors' ``load_file`` and ``safe_open``, ``torch.load``, a pinned buffer in between, by 1, 4
and 8 threads, and ``from_pretrained``. "cold" is after ``posix_fadvise(DONTNEED)``, with the share of pages
that stayed in memory beside it; what the machine below this one keeps in memory is not known.
"""

import ctypes
import gc
import json
import mmap
import os
import resource
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

FILE, SECONDS, FOLDER = Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
UNTIL = time.time() + SECONDS
TINY = bool(os.environ.get("TINY"))
GPU = "cpu" if TINY else "cuda"
GIB = 1 << 30
SIZE = (64 << 20) if TINY else 2 * GIB
RECORD = {"what": __doc__.partition("\n")[0], "torch": torch.__version__, "rows": [], "errors": []}
clock = time.perf_counter
libc = ctypes.CDLL("libc.so.6", use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def save():
    FILE.write_text(json.dumps(RECORD, separators=(",", ":")))


def synchronize():
    if not TINY:
        torch.cuda.synchronize()


def resident(path):
    """Return the share of a file's pages that are in memory."""
    size = path.stat().st_size
    pages = -(-size // 4096)
    handle = os.open(path, os.O_RDONLY)
    address = libc.mmap(None, size, 1, 1, handle, 0)
    os.close(handle)
    seen = (ctypes.c_ubyte * pages)()
    failed = libc.mincore(address, size, seen)
    libc.munmap(address, size)
    return None if failed else round(sum(one & 1 for one in bytes(seen)) / pages, 4)


def forget(*paths):
    """Drop files from the page cache."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def warm(*paths):
    buffer = bytearray(16 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as handle:
            while handle.readinto(buffer):
                pass


def in_threads(count, work):
    """Run ``work`` with 0 to ``count`` - 1, each in a thread of its own."""
    if count == 1:
        work(0)
        return
    failed = []

    def one(index):
        try:
            work(index)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def measured(name, work, paths, *, states=("cold", "warm"), repeat=2, size=None, **more):
    """Add rows of ``work``: seconds, CPU time of user and system, and page faults."""
    for state in states:
        row = {"name": name, "state": state, "size": size or sum(one.stat().st_size for one in paths), **more}
        row["columns"] = ["seconds", "user", "system", "minor_faults", "major_faults", "resident_before"]
        row["runs"] = []
        for _ in range(repeat):
            if time.time() > UNTIL:
                RECORD["errors"].append([f"{name} {state}", "no time was left"])
                break
            forget(*paths) if state == "cold" else warm(*paths)
            there = [resident(one) for one in paths]
            before = resource.getrusage(resource.RUSAGE_SELF)
            synchronize()
            begin = clock()
            try:
                kept = work()
            except Exception:
                RECORD["errors"].append([name, traceback.format_exc()[-800:]])
                print(name, traceback.format_exc()[-400:], flush=True)
                break
            synchronize()
            seconds = clock() - begin
            after = resource.getrusage(resource.RUSAGE_SELF)
            used = [getattr(after, key) - getattr(before, key) for key in ("ru_utime", "ru_stime")]
            faults = [getattr(after, key) - getattr(before, key) for key in ("ru_minflt", "ru_majflt")]
            row["runs"].append([round(seconds, 5), *(round(one, 4) for one in used), *faults, there])
            del kept
            gc.collect()
        if row["runs"]:
            RECORD["rows"].append(row)
            rates = ", ".join(f"{row['size'] / one[0] / 1e9:.2f}" for one in row["runs"])
            print(name, more or "", state, rates, "GB/s", flush=True)
    save()


# -- files -------------------------------------------------------------------------------------------


def tensors(size, seed):
    """Return tensors of the shapes of layers of an 8 B Llama that fill ``size``, random."""
    torch.manual_seed(seed)
    shapes = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096)]
    shapes += [(14336, 4096), (14336, 4096), (4096, 14336), (4096,), (4096,)]
    if TINY:
        shapes = [tuple(max(8, one // 8) for one in shape) for shape in shapes]
    found, filled, at = {}, 0, 0
    while filled < size:
        shape = shapes[at % len(shapes)]
        one = torch.empty(shape, dtype=torch.bfloat16, device=GPU).normal_().cpu()
        found[f"layers.{at // len(shapes)}.{at % len(shapes)}"] = one
        filled, at = filled + 2 * one.numel(), at + 1
    return found


def prepare():
    FOLDER.mkdir(parents=True, exist_ok=True)
    state = tensors(SIZE, 1)
    paths = {"safetensors": FOLDER / "a.safetensors", "bin": FOLDER / "a.bin"}
    begin = clock()
    save_file(state, paths["safetensors"])
    os.sync()
    RECORD["writing_s"] = {"save_file": round(clock() - begin, 2)}
    begin = clock()
    torch.save(state, paths["bin"])
    os.sync()
    RECORD["writing_s"]["torch.save"] = round(clock() - begin, 2)
    RECORD["tensors"] = [len(state), sum(2 * one.numel() for one in state.values())]
    return paths


# -- the disk ----------------------------------------------------------------------------------------


def direct(path, block, threads, seconds):
    """Read ``path`` without the page cache for some seconds; add a row with bytes and time."""
    size = path.stat().st_size
    blocks, done = size // block, [0] * threads
    until = clock() + seconds

    def work(index):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, block)
        at = index
        while clock() < until:
            done[index] += os.preadv(handle, [buffer], (at % blocks) * block)
            at += threads
        os.close(handle)

    forget(path)
    begin = clock()
    in_threads(threads, work)
    took = clock() - begin
    row = {
        "name": "O_DIRECT",
        "block": block,
        "threads": threads,
        "bytes": sum(done),
        "seconds": round(took, 4),
    }
    RECORD["rows"].append(row)
    print("O_DIRECT", block, threads, f"{sum(done) / took / 1e9:.2f} GB/s", flush=True)


def buffered(path, threads, block=8 << 20):
    """Read a file into memory that was written before."""
    size = path.stat().st_size
    part = -(-size // threads // 4096) * 4096
    buffers = [bytearray(block) for _ in range(threads)]

    def work(index):
        handle = os.open(path, os.O_RDONLY)
        at, end = index * part, min(size, (index + 1) * part)
        while at < end:
            at += os.preadv(handle, [memoryview(buffers[index])[: min(block, end - at)]], at)
        os.close(handle)

    return lambda: in_threads(threads, work)


# -- weights -----------------------------------------------------------------------------------------


def opened(path, threads, device, then):
    """Read tensors with ``safe_open``, each thread its share of them."""

    def work():
        with safe_open(path, "pt") as handle:
            names = list(handle.keys())
        found = {}

        def one(index):
            with safe_open(path, "pt", device=device) as handle:
                for name in names[index::threads]:
                    found[name] = then(handle.get_tensor(name))

        in_threads(threads, one)
        return found

    return work


def staged(path, threads, block=64 << 20):
    """Read a file into two pinned buffers of each thread in turn, and copy each to the GPU."""
    size = path.stat().st_size
    target = torch.empty(size, dtype=torch.uint8, device=GPU)
    pin = not TINY
    buffers = [
        [torch.empty(block, dtype=torch.uint8, pin_memory=pin) for _ in range(2)] for _ in range(threads)
    ]
    views = [[memoryview(one.numpy()) for one in pair] for pair in buffers]
    part = -(-size // threads // 4096) * 4096

    def work(index):
        stream = None if TINY else torch.cuda.Stream()
        done = [None, None]
        handle = os.open(path, os.O_RDONLY)
        at, end, turn = index * part, min(size, (index + 1) * part), 0
        while at < end:
            if done[turn] is not None:
                done[turn].synchronize()
            count = os.preadv(handle, [views[index][turn][: min(block, end - at)]], at)
            if TINY:
                target[at : at + count].copy_(buffers[index][turn][:count])
            else:
                with torch.cuda.stream(stream):
                    target[at : at + count].copy_(buffers[index][turn][:count], non_blocking=True)
                    done[turn] = torch.cuda.Event()
                    done[turn].record(stream)
            at, turn = at + count, 1 - turn
        os.close(handle)
        if stream is not None:
            stream.synchronize()

    return lambda: in_threads(threads, work)


def whole_models():
    """Time ``from_pretrained`` of a Qwen3 of 1.7 billion parameters in two files."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    small = TINY
    config = transformers.AutoConfig.for_model(
        "qwen3",
        hidden_size=64 if small else 2048,
        intermediate_size=128 if small else 6144,
        num_hidden_layers=2 if small else 28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=512 if small else 151936,
        tie_word_embeddings=True,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(GPU):
        model = transformers.AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    folder = FOLDER / "model"
    model.save_pretrained(folder, max_shard_size="2GB")
    del model
    gc.collect()
    os.sync()
    paths = sorted(folder.glob("*.safetensors"))
    for device in ("cpu", GPU):
        measured(
            "from_pretrained",
            lambda device=device: transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.bfloat16, device_map=device
            ),
            paths,
            device=device,
        )


def main():
    if not TINY:
        torch.zeros(1, device="cuda")
    paths = prepare()
    flat, old = paths["safetensors"], paths["bin"]
    RECORD["disk"] = {
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if line.startswith("/dev")],
        "free": os.statvfs(FOLDER).f_bavail * os.statvfs(FOLDER).f_frsize,
        "queues": {
            str(one): Path(one, "read_ahead_kb").read_text().strip()
            for one in Path("/sys/block").glob("*/queue")
        },
    }
    for block in (128 << 10, 1 << 20, 8 << 20):
        for threads in (1, 4, 8, 16):
            direct(flat, block, threads, 0.2 if TINY else 1.5)
    save()
    for threads in (1, 4, 8):
        measured("buffered read", buffered(flat, threads), [flat], threads=threads)
    last = lambda one: one  # noqa: E731
    for device, then in (("cpu", torch.clone), (GPU, last)):
        for threads in (1, 4, 8):
            work = opened(flat, threads, device, then)
            how = {"threads": threads, "device": device, "copied": then is not last}
            measured("safe_open", work, [flat], **how)
    for threads in (1, 4, 8):
        measured("pinned buffers to the GPU", staged(flat, threads), [flat], threads=threads)
    measured("load_file", lambda: load_file(flat, device=GPU), [flat], device=GPU)
    measured("load_file, mapped only", lambda: load_file(flat), [flat], device="cpu", repeat=1)
    measured("torch.load", lambda: torch.load(old, weights_only=True), [old], device="cpu", mapped=False)
    measured(
        "torch.load",
        lambda: torch.load(old, weights_only=True, map_location=GPU),
        [old],
        device=GPU,
        mapped=False,
    )
    measured(
        "torch.load",
        lambda: torch.load(old, weights_only=True, map_location=GPU, mmap=True),
        [old],
        device=GPU,
        mapped=True,
    )
    old.unlink()
    whole_models()
    save()
    print("DONE", flush=True)


try:
    main()
except Exception:
    RECORD["errors"].append(["main", traceback.format_exc()[-1500:]])
    print(traceback.format_exc()[-1500:], flush=True)
    save()
