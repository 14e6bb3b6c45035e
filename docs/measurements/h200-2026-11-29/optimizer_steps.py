"""Times of DeepSpeed's optimizer step with several processes on one host: optimizer_steps.py FILE SECONDS

Each of N processes runs DeepSpeed's own engine (ZeRO-3, optimizer on the CPU, sub-groups of 100 M parameters)
over its slices: every tensor of the model has 1/N of its elements, as its partition has with N ranks. All
processes begin each backward pass and each optimizer step together. With one GPU, NCCL cannot connect them,
so that nothing is communicated; all work of the CPU is that of N ranks. Copies to and from the GPU share it.

Numbers of threads are those that launchers leave: all cores (deepspeed, and torchrun with one process), one
(torchrun with several processes, accelerate), and an equal share of the cores.
"""

import contextlib
import ctypes
import gc
import json
import multiprocessing
import os
import sys
import time
import traceback
import zlib
from pathlib import Path

TINY = bool(os.environ.get("TINY"))
WIDTH, FORWARD, KEYS, VOCABULARY, LAYERS = (64, 128, 16, 512, 2) if TINY else (2048, 5632, 256, 32000, 7)
SUB_GROUP = 50_000 if TINY else 100_000_000
COUNTS = [int(one) for one in os.environ.get("PROCESSES", "1,2,4,8").split(",")]
CORES = len(os.sched_getaffinity(0))
METHODS = (
    *("_partition_all_parameters", "has_overflow", "_get_norm_groups", "unscale_and_clip_grads"),
    *("_optimizer_step", "_reassign_or_swap_out_partitioned_parameters", "_post_step", "partition_grads"),
)


def tensors():
    """Return the numbers of elements of the model's tensors, in its order."""
    layer = [WIDTH * WIDTH, WIDTH * KEYS, WIDTH * KEYS, WIDTH * WIDTH, *[WIDTH * FORWARD] * 3, WIDTH, WIDTH]
    return [VOCABULARY * WIDTH, *layer * LAYERS, WIDTH, VOCABULARY * WIDTH]


def cases(count):
    """Return the cases of so many processes: dtype, whether parameters are on the CPU, and threads."""
    threads = sorted({CORES, 1, max(1, CORES // count)}, reverse=True)
    for dtype, offloaded in (("bfloat16", False), ("float16", False), ("bfloat16", True)):
        for number in threads:
            if offloaded and number == 1 and count == 1:
                continue
            where = "in host memory" if offloaded else "on the GPU"
            plural = f"{count} process{'es' if count > 1 else ''}, {number} thread{'s' if number > 1 else ''}"
            name = f"optimizer step, {plural}, {dtype}, parameters {where}"
            half = "holdout" if zlib.crc32(name.encode()) % 3 == 0 else "fit"
            yield {
                "name": name,
                "set": half,
                "processes": count,
                "threads": number,
                "dtype": dtype,
                "parameters_on_cpu": offloaded,
            }


def use(threads):
    """Set the threads of PyTorch's OpenMP library, and of the system's, which compiled steps use."""
    import torch

    torch.set_num_threads(threads)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)


def build(case, count, device):
    import deepspeed
    import torch

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": SUB_GROUP,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            **({"offload_param": {"device": "cpu", "pin_memory": True}} if case["parameters_on_cpu"] else {}),
        },
        "bf16": {"enabled": case["dtype"] == "bfloat16"},
        "fp16": {"enabled": case["dtype"] == "float16", "loss_scale": 1.0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "steps_per_print": 10**9,
    }
    dtype = getattr(torch, case["dtype"])
    factor = torch.randn(max(tensors()) // count, device=device, dtype=torch.float32).mul_(1e-3).to(dtype)

    class Slice(torch.nn.Module):
        def __init__(self, elements):
            super().__init__()
            self.weight = torch.nn.Parameter(
                torch.empty(elements, device=device, dtype=dtype).normal_(0, 0.02)
            )

        def forward(self, total):
            return total + (self.weight * factor[: self.weight.numel()]).sum()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slices = torch.nn.ModuleList(Slice(max(1, one // count)) for one in tensors())

        def forward(self, total):
            for one in self.slices:
                total = one(total)
            return total

    with deepspeed.zero.Init(config_dict_or_path=config, dtype=dtype):
        model = Model()
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    return engine, dtype


@contextlib.contextmanager
def timed(optimizer, rows):
    """Record begin and end [s] of the optimizer's methods, each call a row."""
    own = {name: getattr(optimizer, name) for name in METHODS}

    def wrap(name, method):
        def call(*arguments, **keywords):
            begin = time.perf_counter()
            try:
                return method(*arguments, **keywords)
            finally:
                rows.append((name, begin, time.perf_counter()))

        return call

    for name, method in own.items():
        setattr(optimizer, name, wrap(name, method))
    try:
        yield
    finally:
        for name in own:
            delattr(optimizer, name)


def step(engine, dtype, device, barrier, synchronize):
    """Return the times of one training step by part [s]."""
    import torch

    rows = []
    loss = engine(torch.zeros((), dtype=dtype, device=device))
    synchronize()
    with timed(engine.optimizer, rows):
        barrier.wait(120)
        begin = time.perf_counter()
        engine.backward(loss)
        synchronize()
        backward = time.perf_counter() - begin
        copied = sum(end - start for name, start, end in rows if name == "partition_grads")
        rows.clear()
        barrier.wait(120)
        begin = time.perf_counter()
        engine.step()
        returned = time.perf_counter() - begin
        synchronize()
        total = time.perf_counter() - begin
    parts = {}
    for name, start, end in rows:
        parts.setdefault(name.strip("_"), []).append(round(end - start, 6))
    return {
        "backward": round(backward, 6),
        "partition_grads_host": round(copied, 6),
        "step": round(total, 6),
        "step_returned": round(returned, 6),
        "parts": parts,
    }


def in_time(index, barrier, ended, until):
    """Return whether time is left, with the same answer in every process."""
    barrier.wait(120)
    if index == 0:
        ended.value = time.time() > until
    barrier.wait(120)
    return not ended.value


def worker(index, count, port, barrier, ended, queue, until):
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(port + index)
    import deepspeed
    import torch
    import torch._dynamo

    cuda = torch.cuda.is_available()
    device = "cuda:0" if cuda else "cpu"
    synchronize = torch.cuda.synchronize if cuda else (lambda: None)
    deepspeed.init_distributed()
    engine, built, failed = None, None, None
    for case in cases(count):
        key = case["dtype"], case["parameters_on_cpu"]
        try:
            if not in_time(index, barrier, ended, until):
                queue.put((index, case["name"], "no time was left"))
                continue
            if key == failed:
                continue
            use(CORES)
            begin = time.perf_counter()
            if key != built:
                if engine is not None:
                    engine.destroy()
                    engine = None
                    gc.collect()
                    if cuda:
                        torch.cuda.empty_cache()
                        with contextlib.suppress(AttributeError):
                            torch._C._host_emptyCache()
                engine, dtype = build(case, count, device)
                built = key
                step(engine, dtype, device, barrier, synchronize)  # allocates states and loads kernels
            loading = time.perf_counter() - begin
            use(case["threads"])
            gc.collect()
            gc.disable()
            step(engine, dtype, device, barrier, synchronize)
            repetitions = {1: 2, 2: 3}.get(count, 5) if case["threads"] == 1 else 5
            steps = [step(engine, dtype, device, barrier, synchronize) for _ in range(repetitions)]
            gc.enable()
            flats = [one.numel() for one in engine.optimizer.fp32_partitioned_groups_flat]
            facts = {
                "sub_groups": flats,
                "parameters": sum(flats),
                "tensors": len(tensors()),
                "loading_s": round(loading, 3),
                "torch_threads": torch.get_num_threads(),
                "skipped_steps": engine.skipped_steps,
            }
            queue.put((index, case["name"], {**facts, "steps": steps}))
        except Exception:
            queue.put((index, case["name"], traceback.format_exc()[-1500:]))
            if engine is not None:
                barrier.abort()
                break
            failed = key
    queue.put((index, None, None))
    queue.close()
    queue.join_thread()
    os._exit(0)


def compile_adam():
    begin = time.perf_counter()
    from deepspeed.ops.op_builder import CPUAdamBuilder

    CPUAdamBuilder().load(verbose=False)
    os._exit(0 if time.perf_counter() - begin < 590 else 1)


def main(file, seconds):
    until = time.time() + float(seconds)
    record = {"what": __doc__.partition("\n")[0], "cores": CORES, "runs": []}
    context = multiprocessing.get_context("spawn")
    begin = time.time()
    first = context.Process(target=compile_adam)
    first.start()
    first.join(150)
    record["compile_s"] = round(time.time() - begin, 1)
    for number, count in enumerate(COUNTS):
        if time.time() > until - 15:
            break
        runs = {one["name"]: {**one, "ranks": {}} for one in cases(count)}
        barrier, ended, queue = context.Barrier(count), context.Value("b", 0), context.Queue()
        begin = time.time()
        # later numbers of processes keep an equal part of the time that is left
        share = time.time() + (until - time.time()) / (len(COUNTS) - number)
        arguments = (count, 29600 + 16 * number, barrier, ended, queue, share)
        processes = [context.Process(target=worker, args=(index, *arguments)) for index in range(count)]
        for one in processes:
            one.start()
        missing = count
        while missing:
            try:
                index, name, found = queue.get(timeout=max(1, until + 20 - time.time()))
            except Exception:
                record.setdefault("errors", []).append(f"{count} processes: no answer in time")
                break
            if name is None:
                missing -= 1
                continue
            runs[name]["ranks"][index] = found
            if index == 0:
                if isinstance(found, str):
                    print(name, found[-300:], flush=True)
                else:
                    median = sorted(one["step"] for one in found["steps"])[len(found["steps"]) // 2]
                    back = sorted(one["backward"] for one in found["steps"])[len(found["steps"]) // 2]
                    print(f"{name}: step {median:.3f} s, backward {back:.3f} s", flush=True)
        for one in processes:
            one.join(5)
            if one.is_alive():
                one.kill()
        record["runs"] += runs.values()
        record[f"seconds_{count}"] = round(time.time() - begin, 1)
        Path(file).write_text(json.dumps(record, separators=(",", ":")))
    print("times", {key: value for key, value in record.items() if "second" in key or key == "compile_s"})


if __name__ == "__main__":
    main(*sys.argv[1:])
