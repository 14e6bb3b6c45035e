"""Log vLLM's short prefixes part by part: vllm_prefixes.py chunks16 FILE SECONDS

Prefixes of 1,024 to 49,152 tokens in GPU memory and in host memory (OffloadingConnector), parts of adding a
request, and 16 to 384 new tokens behind a prefix. Everything else is that of
``../h200-2026-11-29/vllm_steps.py``, on which this program is built; the set of a case follows from the hash
of its name.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "h200-2026-11-29"))
sys.path.insert(0, str(Path(__file__).parent))
import vllm_steps as base

clock = base.clock
base.RECORD["what"] = __doc__.partition("\n")[0]
base.HERE = Path(__file__).parent
SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
plain = base.options


def options():
    chosen = plain()
    chosen["cudagraph_capture_sizes"] = SIZES
    return chosen


def watch_adding(engine):
    """Log what adding a request takes: its input, its hashes, and the whole in the core."""
    core = engine.engine_core.engine_core
    base.logged(engine.input_processor, "process_inputs", "a input")
    base.logged(core, "preprocess_add_request", "a request")
    base.logged(core, "add_request", "a add")
    if core.request_block_hasher is not None:
        base.logged(core, "request_block_hasher", "a hash")


def added(driver, tokens, output):
    """Add a request; return its key, the time that this took, and its parts."""
    base.LOG.clear()
    begin = clock()
    key = driver.add(tokens, output)
    took = clock() - begin
    return key, round(1e6 * took, 1), [[one[0], round(1e6 * one[2], 1)] for one in base.LOG]


def shortened(steps):
    """Return the steps of a request; of those in which nothing happens only number and time."""
    found, idle, lasted = [], 0, 0.0
    for step in steps:
        names = {one[0] for one in step[3]}
        busy = any(one[0] == "schedule" and one[3] for one in step[3])
        if busy or step[2] or names & {"c load", "c load done", "c store", "c match"}:
            if idle:
                found.append(["idle", idle, round(lasted, 7)])
            found.append(step)
            idle, lasted = 0, 0.0
        else:
            idle, lasted = idle + 1, lasted + step[1]
    return found


def hits(driver, number, repetitions=4):
    """Time a prompt that is computed, found in GPU memory, and found in host memory."""
    name = f"short prefix of {number} tokens"
    result = {"name": name, "set": base.half(name), "prefix": number, "rows": []}
    for _ in range(repetitions):
        prefix = driver.tokens(number)
        for kind in ("computed", "local", "stored", "stored"):
            if kind == "stored":
                driver.engine.reset_prefix_cache()
            driver.fresh()
            begin = clock()
            key, adding, parts = added(driver, prefix + driver.tokens(32), 4)
            driver.drain()
            first, cached = driver.first[key]
            row = {"kind": kind, "first": round(first - begin, 7), "cached": cached, "adding": adding}
            result["rows"].append(row | {"parts": parts, "steps": shortened(driver.steps)})
            driver.poke()
            time.sleep(0.1)
            driver.poke()
        if time.time() > base.UNTIL:
            break
    base.RECORD["results"].append(result)
    base.save()
    print(name, result["set"], len(result["rows"]), flush=True)


def tails(driver, number, sizes=(16, 32, 64, 128, 256, 384), repetitions=4):
    """Time prompts of few new tokens behind a prefix in GPU memory."""
    prefix = driver.tokens(number)
    driver.add(prefix + driver.tokens(16), 2)
    driver.drain()
    driver.poke()
    for size in sizes:
        name = f"{size} new tokens behind {number}"
        rows = []
        for _ in range(repetitions):
            driver.fresh()
            begin = clock()
            key, adding, _ = added(driver, prefix + driver.tokens(size), 4)
            driver.drain()
            first, cached = driver.first[key]
            rows.append(
                {"first": round(first - begin, 7), "cached": cached, "adding": adding, "steps": driver.steps}
            )
            driver.poke(4)
        base.RECORD["results"].append(
            {"name": name, "set": base.half(name), "prefix": number, "new": size, "rows": rows}
        )
    base.save()
    print("tails behind", number, flush=True)


def main():
    engine, add = base.start()
    base.watch(engine)
    watch_adding(engine)
    driver = base.Driver(engine, add)
    for number in (40, 600, 2100, 8000):
        driver.add(driver.tokens(number), 8)
        driver.drain()
    base.RECORD["options"]["model"] = Path(base.options()["model"]).name
    base.RECORD["warm_s"] = round(time.time() - base.BEGUN, 1)
    for number in (1024, 4096, 2048, 8192, 1536, 6144, 3072, 12288, 24576, 49152):
        base.guarded(hits, driver, number, 4 if number < 20000 else 2)
    for number in (1024, 4096, 16384):
        base.guarded(tails, driver, number)
    base.save()
    print("DONE", base.CASE, base.RECORD["seconds"], flush=True)
    os._exit(0)


base.options = options
if __name__ == "__main__":
    main()
