"""Matrix products of prefills in bursts and under lasting load: products.py FILE SECONDS

For each shape, rows and format: bursts of ten products after a rest, and the same product without pause for
about a second, in pieces; then the four products of a layer in turn, as a prefill has them. Experts are
PyTorch's grouped product. The clock and the power of the GPU are sampled. Weights and inputs
are random, and take turns so that no weight is in the cache.
"""

import json
import os
import sys
import threading
import time
import traceback
import zlib
from itertools import pairwise
from pathlib import Path

import torch

TINY = bool(os.environ.get("TINY"))
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
LASTING, REST, BURSTS = (0.02, 0.001, 2) if TINY else (0.9, 0.06, 4)
LAYER = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
LARGE = ((10240, 8192), (8192, 28672))
ROWS = (8192, 2048, 512)
EXPERTS = (
    (8, 28672, 4096, 2),
    (8, 4096, 14336, 2),
    (128, 1536, 2048, 8),
    (128, 2048, 768, 8),
    (32, 5760, 2880, 4),
)
"""Experts, outputs, inputs, and experts that a token chooses."""
TOKENS = (8192, 2048)
FORMATS = ("bfloat16", "fp8")


def cases():
    for at, shape in enumerate((*LAYER, *LARGE)):
        for rows in ROWS if at < len(LAYER) else ROWS[:2]:
            for form in FORMATS:
                yield {"n": shape[0], "k": shape[1], "rows": rows, "format": form}
    for experts, n, k, chosen in EXPERTS:
        for tokens in TOKENS:
            yield {"n": n, "k": k, "rows": tokens * chosen, "experts": experts, "format": "bfloat16"}


def named(case):
    name = " ".join(f"{key} {value}" for key, value in case.items())
    return {"name": name, "set": "holdout" if zlib.crc32(name.encode()) % 3 == 0 else "fit", **case}


class Clock:
    """Samples of time, SM clock [MHz] and power [W]."""

    def __init__(self):
        self.rows, self.done = [], threading.Event()
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self.read = lambda: (
                pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
            )
            self.read()
        except Exception as error:
            print("no clock:", error)
            self.read = None
            return
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while not self.done.wait(0.05):
            self.rows.append([round(time.perf_counter(), 3), *self.read()])


def scaled(a, b, one):
    return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def work(case):
    """Return a function of a counter that computes one product."""
    n, k, rows = case["n"], case["k"], case["rows"]
    if TINY:
        n, k, rows = 64, 64, 64
    experts = case.get("experts")
    each = (experts or 1) * n * k * (1 if case["format"] == "fp8" else 2)
    count = max(2, min(8, (300 << 20) // each + 1))
    inputs = [torch.randn(rows, k, device=DEVICE).bfloat16() for _ in range(2)]
    if experts:
        weights = [torch.randn(experts, n, k, device=DEVICE, dtype=torch.bfloat16) for _ in range(count)]
        ends = torch.arange(1, experts + 1, device=DEVICE, dtype=torch.int32) * (rows // experts)
        ends[-1] = rows
        product = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        return lambda at: product(inputs[at % 2], weights[at % count].transpose(1, 2), offs=ends)
    weights = [torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16) for _ in range(count)]
    if case["format"] == "fp8":
        one = torch.ones((), device=DEVICE)
        inputs = [each.to(torch.float8_e4m3fn) for each in inputs]
        weights = [each.to(torch.float8_e4m3fn) for each in weights]
        return lambda at: scaled(inputs[at % 2], weights[at % count].t(), one)
    return lambda at: torch.nn.functional.linear(inputs[at % 2], weights[at % count])


def event():
    if CUDA:
        found = torch.cuda.Event(enable_timing=True)
        found.record()
        return found
    return time.perf_counter()


def between(first, last):
    return first.elapsed_time(last) / 1e3 if CUDA else last - first


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def bursts(product):
    """Return the times of bursts: of the first product and of the nine that follow, each [s]."""
    found = []
    for _ in range(BURSTS):
        synchronize()
        time.sleep(REST)
        marks = []
        if CUDA:
            torch.cuda._sleep(400_000)  # so that all are launched before the first begins
        marks.append(event())
        for at in range(10):
            product(at)
            if at in (0, 9):
                marks.append(event())
        synchronize()
        found.append([round(between(*marks[:2]), 8), round(between(*marks[1:]) / 9, 8)])
    return found


def lasting(products, seconds):
    """Run products in turn without pause, and return the mean times [s] of each in pieces of the time."""
    for product in products:
        product(0)
    synchronize()
    begin = time.perf_counter()
    for product in products:
        for at in range(3):
            product(at)
    synchronize()
    each = (time.perf_counter() - begin) / 3
    rounds = max(12, int(seconds / each))
    piece = max(1, rounds // 12)
    found, marks, waits = [], [], []
    start = time.perf_counter()
    for at in range(rounds):
        row = [event()] if at % piece == 0 or len(products) > 1 else []
        for product in products:
            product(at)
            if len(products) > 1:
                row.append(event())
        marks.append(row)
        if at % piece == 0:
            waits.append(marks[-1][0])
            if CUDA and len(waits) > 2:
                waits[-2].synchronize()  # the host stays at most two pieces ahead
    last = event()
    synchronize()
    end = time.perf_counter()
    if len(products) == 1:
        firsts = [row[0] for row in marks[::piece]] + [last]
        for at, pair in enumerate(pairwise(firsts)):
            number = min(piece, rounds - at * piece)
            found.append(round(between(*pair) / number, 8))
        return {"pieces": found, "rounds": rounds, "from": round(start, 3), "to": round(end, 3)}
    found += [[round(between(*pair), 8) for pair in pairwise(row)] for row in marks]
    kept = found[:: max(1, len(found) // 60)]
    return {"rows": kept, "rounds": rounds, "from": round(start, 3), "to": round(end, 3)}


def main(file, seconds):
    until = time.time() + float(seconds)
    path = Path(file)
    clock = Clock()
    record = {"what": __doc__.partition("\n")[0], "torch": torch.__version__, "runs": [], "errors": []}
    chosen = [named(case) for case in cases()]
    mixes = [(rows, form) for rows in ROWS[:2] for form in FORMATS]
    for rows, form in mixes:
        name = f"layer in turn rows {rows} format {form}"
        chosen.append({"name": name, "set": "fit", "layer": LAYER, "rows": rows, "format": form})
    for case in chosen:
        if time.time() > until:
            record["errors"].append([case["name"], "no time was left"])
            continue
        try:
            if "layer" in case:
                each = [
                    work({"n": n, "k": k, "rows": case["rows"], "format": case["format"]}) for n, k in LAYER
                ]
                record["runs"].append({**case, "lasting": lasting(each, 2 * LASTING)})
                continue
            product = work(case)
            product(0)
            synchronize()
            begin = time.perf_counter()
            short = bursts(product)
            found = {"from": round(begin, 3), "bursts": short, "lasting": lasting([product], LASTING)}
            record["runs"].append({**case, **found})
            operations = 2 * case["n"] * case["k"] * case["rows"] / 1e12
            last = found["lasting"]["pieces"][-5:-1]
            rates = [operations / sorted(one[1] for one in short)[len(short) // 2]]
            rates.append(operations / (sum(last) / len(last)))
            print(case["name"], [f"{one:.0f}" for one in rates], "TFLOP/s", flush=True)
        except Exception:
            record["errors"].append([case["name"], traceback.format_exc()[-1200:]])
            print(case["name"], traceback.format_exc()[-300:], flush=True)
        product = each = None
        if CUDA:
            torch.cuda.empty_cache()
        path.write_text(json.dumps(record | {"clock": clock.rows}, separators=(",", ":")))
    clock.done.set()
    record |= {"clock_columns": ["at", "sm_MHz", "W"], "clock": clock.rows}
    path.write_text(json.dumps(record, separators=(",", ":")))


if __name__ == "__main__":
    main(*sys.argv[1:])
