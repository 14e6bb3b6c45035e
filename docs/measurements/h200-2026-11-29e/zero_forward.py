"""Forward passes under ZeRO-3 beside those of small models, in turn, and traces: zero_forward.py FILE SECONDS

Small models are those of ``calibrate micro``; they stay in memory, and a step of each is timed between the
steps of every real model, so that both see the same host. Then one pass is traced by module, one by the
functions of DeepSpeed's coordinator, and one by PyTorch's profiler. The set of a case follows from the hash
of its name. No time is printed.
"""

import contextlib
import dataclasses
import gc
import json
import os
import sys
import time
import traceback
import zlib
from pathlib import Path

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
os.environ.setdefault("MASTER_PORT", "29613")

import deepspeed
import torch
import torch._dynamo
import transformers
from deepspeed.runtime.zero import parameter_offload, partition_parameters, partitioned_param_coordinator

from simoffload_calibrate import small_models
from simoffload_calibrate.deepspeed import worker
from simoffload_calibrate.passes import architecture, configuration
from simoffload_calibrate.runs import request

FILE, SECONDS = Path(sys.argv[1]), float(sys.argv[2])
UNTIL = time.time() + SECONDS
TINY = bool(os.environ.get("TINY"))
CUDA = torch.cuda.is_available()
RECORD = {"what": __doc__.partition("\n")[0], "torch": torch.__version__, "deepspeed": deepspeed.__version__}
RECORD |= {"transformers": transformers.__version__, "runs": [], "errors": []}
STATES, BOTH = ("offload_optimizer",), ("offload_param", "offload_optimizer")
clock = time.perf_counter


def save():
    FILE.write_text(json.dumps(RECORD, separators=(",", ":")))


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def llama(hidden, forward, heads, keys, vocabulary, layers, family="llama", **more):
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    found = dict(zip(names, (hidden, forward, heads, keys, vocabulary), strict=True))
    if TINY:
        found, layers = dict(zip(names, (64, 128, 4, 2, 512), strict=True)), 2
    found |= {"family": family, "num_hidden_layers": layers, "max_position_embeddings": 8192}
    return found | more | {"dtype": "bfloat16"}


REAL = (  # name, model, parts on the CPU, batch, length, checkpointing, built inside zero.Init
    ("llama-3.2-3b", llama(3072, 8192, 24, 8, 32000, 14), STATES, 1, 2048, True, True),
    ("llama-3.2-3b", llama(3072, 8192, 24, 8, 32000, 14), BOTH, 1, 2048, True, True),
    ("tinyllama-1.1b", llama(2048, 5632, 32, 4, 32000, 22), BOTH, 4, 1024, False, True),
    ("llama-2-7b", llama(4096, 11008, 32, 32, 32000, 4), STATES, 1, 4096, True, True),
    ("llama-3.2-3b", llama(3072, 8192, 24, 8, 32000, 14), STATES, 1, 2048, True, False),
    ("qwen2.5-1.5b", llama(1536, 8960, 12, 2, 151936, 28, "qwen2"), BOTH, 2, 2048, True, True),
)
SMALL = (
    ("small llama, prefetch of one", STATES, "prefetch of one"),
    ("small llama, all offloaded, no prefetch", BOTH, "no prefetch"),
)


def case_of(run):
    """Return what a run's process is told, as ``calibrate deepspeed`` does."""
    wanted = run.request
    case = {"name": wanted.name, "model": wanted.model.model_dump(exclude_none=True)}
    case |= {"workload": wanted.workload.model_dump(), "hf_config": dict(run.hf_config)}
    case |= {"ds_config": dict(run.ds_config), "dtype": run.dtype, "attention": None, "trace": False}
    return case


def real_run(name, model, offloaded, batch, length, checkpointing, inside):
    layers = model["num_hidden_layers"]
    where = "all offloaded" if offloaded == BOTH else "optimizer offloaded"
    kept = "" if checkpointing else ", activations kept"
    made = "" if inside else ", made before DeepSpeed"
    key = f"{name}, {layers} layers, {batch} x {length}, {where}{kept}{made}"
    zero = {"stage": 3, **{part: {"device": "cpu", "pin_memory": True} for part in offloaded}}
    work = {"kind": "training", "batch_size": batch, "sequence_length": 16 if TINY else length, "steps": 6}
    work["gradient_checkpointing"] = checkpointing
    strategy = {"ranks": 1, "ds_config": {"zero_optimization": zero}}
    return request({"name": key, "model": model, "workload": work, "strategy": strategy})


def small_run(name, offloaded, settings):
    found = small_models._training_case(1, 2 if TINY else 24, "llama", offloaded, settings, True, 1)
    return dataclasses.replace(found, request=found.request.model_copy(update={"name": name}))


def made_before(case, _config):
    """Make a model on the GPU, which DeepSpeed then partitions, as without ``zero.Init``."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if CUDA else "cpu"):
        model = architecture(case)(configuration(case))
    torch.set_default_dtype(torch.float32)
    if case["workload"]["gradient_checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": case["workload"]["use_reentrant"]})
    model.train()
    return model


# -- traces --------------------------------------------------------------------------------------------

COORDINATOR = partitioned_param_coordinator.PartitionedParameterCoordinator
OFFLOAD = parameter_offload.DeepSpeedZeRoOffload
WRAPPED = (
    (COORDINATOR, "fetch_sub_module"),
    (COORDINATOR, "release_sub_module"),
    (COORDINATOR, "_PartitionedParameterCoordinator__all_gather_params"),
    (COORDINATOR, "_PartitionedParameterCoordinator__all_gather_params_"),
    (COORDINATOR, "_PartitionedParameterCoordinator__release_param"),
    (COORDINATOR, "trace_prologue"),
    (OFFLOAD, "pre_sub_module_forward_function"),
    (OFFLOAD, "post_sub_module_forward_function"),
    (partition_parameters.AllGatherCoalescedHandle, "wait"),
    (partition_parameters.AllGatherHandle, "wait"),
    (partition_parameters.NoGatherCoalescedHandle, "wait"),
    (partition_parameters.NoGatherHandle, "wait"),
    (parameter_offload, "apply_to_tensors_only"),
    (partition_parameters, "free_param"),
)


@contextlib.contextmanager
def calls(rows):
    """Record calls of functions of DeepSpeed: name, begin and end [s], number of the first argument."""
    kept = []

    def wrap(label, function):
        def call(*arguments, **named):
            count = 0
            for one in arguments[1:2]:
                with contextlib.suppress(TypeError):
                    count = len(one) if isinstance(one, (list, set, tuple)) else 1
            begin = clock()
            try:
                return function(*arguments, **named)
            finally:
                rows.append([label, begin, clock(), count])

        return call

    for owner, name in WRAPPED:
        function = owner.__dict__.get(name)
        if callable(function):
            kept.append((owner, name, function))
            owner_name = getattr(owner, "__name__", "").rpartition(".")[2]
            setattr(owner, name, wrap(f"{owner_name}.{name.rpartition('__')[2] or name}", function))
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def coordinator_calls(forward):
    rows = []
    synchronize()
    begin = clock()
    with calls(rows):
        forward()
    returned = clock()
    synchronize()
    found = {"returned": round(returned - begin, 6), "seconds": round(clock() - begin, 6)}
    rows.sort(key=lambda row: row[1])
    names = sorted({row[0] for row in rows})
    columns = [[names.index(row[0]) for row in rows]]
    columns += [[round((row[at] - begin) * 1e6, 1) for row in rows] for at in (1, 2)]
    return found | {"names": names, "columns": [*columns, [row[3] for row in rows]]}


def profiled(forward):
    """Return operations and kernels of a pass by name: number, host time of their own, GPU time [us]."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if CUDA else [])
    synchronize()
    begin = clock()
    with profile(activities=kinds) as found:
        forward()
        synchronize()
    seconds = clock() - begin
    rows = [
        [
            one.key[:80],
            one.count,
            round(one.self_cpu_time_total, 1),
            round(getattr(one, "self_device_time_total", 0), 1),
        ]
        for one in found.key_averages()
    ]
    return {"seconds": round(seconds, 6), "rows": sorted(rows, key=lambda row: -row[2] - row[3])[:90]}


def launches():
    if not CUDA:
        return 0.0
    one = torch.ones(16, device="cuda")
    synchronize()
    begin = clock()
    for _ in range(200):
        one.add_(1)
    found = (clock() - begin) / 200 * 1e6
    synchronize()
    return round(found, 2)


class Traced:
    """A run whose steps are timed and whose forward passes are traced."""

    def __init__(self, case, *, inside=True):
        kept = worker.build
        worker.build = kept if inside else made_before
        try:
            self.run = worker.Run(case, nvme_path="")
        finally:
            worker.build = kept
        self.case, self.steps = case, []
        gc.collect()
        gc.freeze()

    def step(self, *, keep=True):
        """Time forward, backward and the optimizer, with the host's time until each returned."""
        row = [launches()]
        for _name, part in self.run._parts(self.run._tokens):
            synchronize()
            begin = clock()
            part()
            returned = clock()
            synchronize()
            row += [round(returned - begin, 6), round(clock() - begin, 6), launches()]
        if keep:
            self.steps.append(row)
        return row

    def with_forward(self, work):
        """Run a step whose forward pass is given to ``work``."""
        found = None
        for name, part in self.run._parts(self.run._tokens):
            if name == "forward":
                found = work(part)
            else:
                part()
        synchronize()
        return found

    def traces(self):
        found = {}
        for name, work in (
            ("modules", self.run._traced),
            ("calls", coordinator_calls),
            ("profile", profiled),
        ):
            try:
                found[name] = self.with_forward(work)
            except Exception:
                RECORD["errors"].append([self.case["name"], name, traceback.format_exc()[-800:]])
        return found


def main():
    deepspeed.init_distributed()
    small = []
    for one in SMALL:
        built = Traced(case_of(small_run(*one)))
        for _ in range(4):
            built.step(keep=False)
        small.append(built)
    print("small models", flush=True)
    longest = 0.0
    wanted = os.environ.get("CASES")
    for one in [REAL[int(at)] for at in wanted.split(",")] if wanted else REAL:
        run = real_run(*one)
        name, begin = run.request.name, time.time()
        if begin + longest > UNTIL:
            RECORD["errors"].append([name, "no time was left"])
            continue
        row = {"name": name, "set": "holdout" if zlib.crc32(name.encode()) % 3 == 0 else "fit"}
        row |= {"model": one[1], "inside_zero_init": one[6], "columns": ["launch_us"]}
        row["columns"] += [
            f"{part} {what}"
            for part in ("forward", "backward", "optimizer")
            for what in ("returned", "seconds", "launch_us")
        ]
        built = None
        try:
            case = case_of(run)
            row |= {"ds_config": case["ds_config"], "workload": case["workload"]}
            built = Traced(case, inside=one[6])
            row["loading_s"] = round(time.time() - begin, 2)
            for _ in range(2):
                built.step(keep=False)
            for each in small:
                each.steps = []
            for _ in range(5):
                built.step()
                for each in small:
                    each.step(keep=False)  # after a step of other memory
                    each.step()
            row["steps"] = built.steps
            row["small"] = {each.case["name"]: each.steps for each in small}
            row["traces"] = built.traces()
            row["small_traces"] = {each.case["name"]: each.traces() for each in small}
            row["threads"] = torch.get_num_threads()
        except Exception:
            RECORD["errors"].append([name, traceback.format_exc()[-1500:]])
            print(traceback.format_exc()[-800:], flush=True)
        if built is not None:
            engine = built.run.engine
            del built
            gc.unfreeze()
            worker.forget(engine)
            del engine
            gc.collect()
        row["seconds"] = round(time.time() - begin, 1)
        longest = max(longest, 0.8 * row["seconds"])
        RECORD["runs"].append(row)
        save()
        print(name, f"{row['seconds']:.1f} s", flush=True)
    print("DONE", flush=True)


try:
    main()
except Exception:
    RECORD["errors"].append(["main", traceback.format_exc()[-1500:]])
    print(traceback.format_exc()[-1500:], flush=True)
    save()
os._exit(0)
