"""Times of DeepSpeed's optimizer step with larger sub-groups: optimizer_sub_groups.py FILE SECONDS

As ``../h200-2026-11-29/optimizer_steps.py``, from which model, engine and timers come, with 1.1 B parameters
(TinyLlama) and one sub-group for all that a process has, and with fewer threads. Each step also has the CPU
time and the changes of context of its process, and when its parts began. Processes start once and build an
engine after the other; those of the second pool have OMP_WAIT_POLICY=passive, so that waiting threads sleep.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import resource
import sys
import time
import traceback
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "h200-2026-11-29"))
import optimizer_steps as base

base.LAYERS = 2 if base.TINY else 22
ALL = 2_000_000_000
SMALL = 120_000 if base.TINY else 300_000_000
PLAN = (  # processes, sub-group, dtype, threads, whether waiting threads sleep
    (4, ALL, "bfloat16", (16, 4, 8, 2, 1), False),
    (2, ALL, "bfloat16", (16, 8, 4, 1), False),
    (1, ALL, "bfloat16", (16, 8, 4, 1), False),
    (8, ALL, "bfloat16", (16, 2, 8, 4, 1), False),
    (8, ALL, "bfloat16", (16, 2), True),
    (8, ALL, "bfloat16", (16, 2), False),
    (4, ALL, "bfloat16", (16, 4), True),
    (4, ALL, "float16", (16, 4), False),
    (8, 30_000_000, "bfloat16", (16, 2), False),
    (2, SMALL, "bfloat16", (16, 8), False),
    (2, ALL, "bfloat16", (16, 8), True),
    (1, SMALL, "bfloat16", (16, 4), False),
)
PLAN = PLAN[int(os.environ.get("FIRST", "0")) :]
POOLS = {one: max((row[0] for row in PLAN if row[-1] is one), default=0) for one in (False, True)}
"""The number of processes of each pool."""
SLOW = 1
if base.TINY:
    PLAN = [(min(2, count), *rest) for count, *rest in PLAN if count < 4 or rest[-1]]
    PLAN, POOLS, SLOW = [one for one in PLAN if not one[-1]], {False: 2}, 6


def cases():
    """Return the engines with the cases of each."""
    for count, group, dtype, threads, passive in PLAN:
        found = []
        for number in threads:
            plural = f"{count} process{'es' if count > 1 else ''}, {number} thread{'s' if number > 1 else ''}"
            size = "all" if group == ALL else f"{group:.0e}"
            name = f"optimizer step, {plural}, {dtype}, sub-groups of {size}"
            name += ", waiting threads sleep" if passive else ""
            half = "holdout" if zlib.crc32(name.encode()) % 3 == 0 else "fit"
            found.append({"name": name, "set": half, "processes": count, "threads": number, "dtype": dtype})
            found[-1] |= {"sub_group": group, "passive": passive, "parameters_on_cpu": False}
        yield found


def used():
    """Return CPU time [s] of user and system, and voluntary and other changes of context, of this process."""
    one = resource.getrusage(resource.RUSAGE_SELF)
    return [one.ru_utime, one.ru_stime, one.ru_nvcsw, one.ru_nivcsw]


def step(engine, dtype, device, barrier, synchronize):
    """Return times of one training step: backward, the whole step, begin and length of its parts [s]."""
    import torch

    rows = []
    loss = engine(torch.zeros((), dtype=dtype, device=device))
    synchronize()
    with base.timed(engine.optimizer, rows):
        barrier.wait(60 * SLOW)
        begin = time.perf_counter()
        engine.backward(loss)
        synchronize()
        backward = time.perf_counter() - begin
        rows.clear()
        barrier.wait(60 * SLOW)
        before, begin = used(), time.perf_counter()
        engine.step()
        synchronize()
        total, after = time.perf_counter() - begin, used()
    parts = {}
    for name, start, end in rows:
        parts.setdefault(name.strip("_"), []).append([round(start - begin, 5), round(end - start, 6)])
    cpu = [round(one - other, 4) for one, other in zip(after, before, strict=True)]
    return {"backward": round(backward, 6), "step": round(total, 6), "cpu": cpu, "parts": parts}


def worker(index, port, barriers, pipe):
    """Build engines and time their steps, as asked."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(port + index)
    import deepspeed
    import torch
    import torch._dynamo

    cuda = torch.cuda.is_available()
    device = "cuda:0" if cuda else "cpu"
    synchronize = torch.cuda.synchronize if cuda else (lambda: None)
    deepspeed.init_distributed()
    engine = dtype = None
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        case, repetitions = order
        barrier = barriers[case["processes"]]
        try:
            if not repetitions:
                begin = time.perf_counter()
                if engine is not None:
                    engine.destroy()
                    engine = None
                    gc.collect()
                    if cuda:
                        torch.cuda.empty_cache()
                        with contextlib.suppress(AttributeError):
                            torch._C._host_emptyCache()
                base.use(base.CORES)
                base.SUB_GROUP = case["sub_group"]
                engine, dtype = base.build(case, case["processes"], device)
                step(engine, dtype, device, barrier, synchronize)  # allocates states and loads kernels
                flats = [one.numel() for one in engine.optimizer.fp32_partitioned_groups_flat]
                pipe.send({"sub_groups": flats, "loading_s": round(time.perf_counter() - begin, 3)})
                continue
            base.use(case["threads"])
            gc.collect()
            gc.disable()
            steps = [step(engine, dtype, device, barrier, synchronize) for _ in range(repetitions)]
            gc.enable()
            pipe.send({"steps": steps, "skipped_steps": engine.skipped_steps})
        except Exception:
            barrier.abort()
            pipe.send(traceback.format_exc()[-1200:])
    os._exit(0)


class Pool:
    """Processes that do the same at the same time."""

    def __init__(self, passive):
        os.environ.pop("OMP_WAIT_POLICY", None)
        if passive:
            os.environ["OMP_WAIT_POLICY"] = "passive"
        context = multiprocessing.get_context("spawn")
        self.barriers = {count: context.Barrier(count) for count in (1, 2, 4, 8)}
        self.pipes, self.processes = [], []
        for index in range(POOLS[passive]):
            own, other = context.Pipe()
            arguments = (index, 29700 + 16 * passive, self.barriers, other)
            self.processes.append(context.Process(target=worker, args=arguments, daemon=True))
            self.processes[-1].start()
            self.pipes.append(own)
        os.environ.pop("OMP_WAIT_POLICY", None)

    def answers(self, count, seconds):
        """Return the answers of the first processes; raises if one does not come in time."""
        until = time.time() + seconds
        found = []
        for pipe in self.pipes[:count]:
            if not pipe.poll(max(0.1, until - time.time())):
                raise TimeoutError
            found.append(pipe.recv())
        return found

    def ask(self, case, repetitions):
        """Return what the processes of a case answer to an order."""
        count = case["processes"]
        for pipe in self.pipes[:count]:
            pipe.send((case, repetitions))
        found = self.answers(count, 75 * SLOW)
        if errors := [one for one in found if isinstance(one, str)]:
            self.barriers[count].reset()
            raise RuntimeError(next((one for one in errors if "BrokenBarrier" not in one), errors[0]))
        return found

    def end(self):
        """End all processes."""
        for one in self.processes:
            one.kill()


def main(file, seconds):
    until = time.time() + float(seconds)
    path = Path(file)
    record = {"what": __doc__.partition("\n")[0], "cores": base.CORES, "runs": [], "errors": []}
    begin = time.time()
    first = multiprocessing.get_context("spawn").Process(target=base.compile_adam)
    first.start()
    pools = {passive: Pool(passive) for passive, number in POOLS.items() if number}
    first.join(120)
    record["compile_s"] = round(time.time() - begin, 1)
    for passive, pool in pools.items():
        pool.answers(POOLS[passive], 90 * SLOW)
    record["ready_s"] = round(time.time() - begin, 1)
    for group in cases():
        pool = pools[group[0]["passive"]]
        try:
            if time.time() > until - 14:
                raise TimeoutError("no time was left")
            facts = pool.ask(group[0], 0)
            for case in group:
                if time.time() > until - 6:
                    raise TimeoutError("no time was left")
                repetitions = 4 if case["processes"] * case["threads"] >= 4 else 3
                ranks = pool.ask(case, repetitions)
                record["runs"].append({**case, **facts[0], "ranks": ranks})
                times = [max(one["steps"][at]["step"] for one in ranks) for at in range(repetitions)]
                print(
                    f"{case['name']}: {times} {facts[0]['loading_s']} {time.time() - begin:.0f}", flush=True
                )
                path.write_text(json.dumps(record, separators=(",", ":")))
        except (TimeoutError, EOFError) as error:
            record["errors"].append([group[0]["name"], str(error) or "no answer in time"])
            if not str(error):
                pool.end()
                break
        except RuntimeError as error:
            record["errors"].append([group[0]["name"], str(error)])
            print(str(error)[-400:], flush=True)
        path.write_text(json.dumps(record, separators=(",", ":")))
    for pool in pools.values():
        pool.end()
    path.write_text(json.dumps(record, separators=(",", ":")))
    print("seconds", time.time() - begin, record["errors"])


if __name__ == "__main__":
    main(*sys.argv[1:])
