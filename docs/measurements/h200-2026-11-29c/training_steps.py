"""Whole training steps, DeepSpeed's with the optimizer on the CPU and eager ones by part:
training_steps.py zero|eager FILE SECONDS

``zero``: ZeRO stages 2 and 3 with a whole model and its optimizer in host memory. Each step is timed as a
whole, then in three parts with a wait after each, then with the methods of DeepSpeed's optimizer. ``eager``:
adapters in single precision and in 16 bits, with and without checkpointing, and whole weights in 16 bits and
in single precision under autocast; PyTorch's AdamW with one call for many tensors, and fused; kernels of one
step. ``TRAINED="adapters in float32, autocast"`` names others. Nothing that was measured is printed.
"""

import contextlib
import gc
import importlib.util
import json
import os
import resource
import sys
import time
import traceback
import zlib
from pathlib import Path

import torch
import torch._dynamo  # before zero.Init: it is imported lazily otherwise and meets patched tensors
import transformers

TINY = bool(os.environ.get("TINY"))
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def shape(hidden, forward, heads, keys, vocabulary, layers, kind="llama", tied=False):
    numbers = (64, 128, 4, 2, 512, 2) if TINY else (hidden, forward, heads, keys, vocabulary, layers)
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    found = dict(zip((*names, "num_hidden_layers"), numbers, strict=True))
    return {"model_type": kind, "max_position_embeddings": 8192, "tie_word_embeddings": tied, **found}


MODELS = {
    "tinyllama-1.1b": shape(2048, 5632, 32, 4, 32000, 22),
    "llama-2-7b": shape(4096, 11008, 32, 32, 32000, 32),
    "llama-3-8b": shape(4096, 14336, 32, 8, 128256, 32),
    "llama-3.2-3b": shape(3072, 8192, 24, 8, 128256, 28, tied=True),
    "qwen2.5-1.5b": shape(1536, 8960, 12, 2, 151936, 28, "qwen2", tied=True),
    "qwen2.5-7b": shape(3584, 18944, 28, 4, 152064, 28, "qwen2"),
}
ZERO = (  # model, layers, stage, sub-group, parameters on the CPU, batch, length, checkpointing
    ("llama-2-7b", 4, 3, 10**9, False, 1, 4096, True),
    ("llama-2-7b", 4, 3, 10**8, False, 1, 4096, True),
    ("llama-2-7b", 4, 2, 10**9, False, 1, 4096, True),
    ("llama-3.2-3b", 28, 3, 10**9, False, 1, 2048, True),
    ("tinyllama-1.1b", 22, 3, 10**8, True, 4, 1024, False),
    ("tinyllama-1.1b", 22, 2, 10**9, False, 4, 1024, False),
    ("qwen2.5-1.5b", 28, 3, 10**9, True, 2, 2048, True),
    ("qwen2.5-1.5b", 28, 3, 10**8, False, 2, 2048, True),
)
OTHERS = "adapters in bfloat16;bfloat16;float32, autocast"
EAGER = tuple(  # model, layers, batch, length, what is trained, checkpointing
    (*size, trained, checkpointing)
    for size in (("llama-2-7b", 4, 1, 4096), ("llama-3-8b", 3, 2, 2048), ("qwen2.5-7b", 4, 4, 1024))
    for trained in os.environ.get("TRAINED", f"adapters in float32;{OTHERS}").split(";")
    for checkpointing in (False, True)
)
COLUMNS = {
    "zero": ("model", "layers", "stage", "sub_group", "on_cpu", "batch", "length", "checkpointing"),
    "eager": ("model", "layers", "batch", "length", "trained", "checkpointing"),
}
TRACED = ("llama-2-7b", "llama-3-8b")
METHODS = (
    "_pre_step",
    "_partition_all_parameters",
    "_get_norm_groups",
    "scaled_global_norm",
    "unscale_and_clip_grads",
    "_optimizer_step",
    "_reassign_or_swap_out_partitioned_parameters",
    "_post_step",
    "reset_cpu_buffers",
    "_update_model_bit16_weights",
    "zero_grad",
)


def named(kind, case):
    """Return a case with its name and set."""
    found = dict(zip(COLUMNS[kind], case, strict=True))
    name = ", ".join(str(one) for one in case)
    return {"name": name, "set": "holdout" if zlib.crc32(name.encode()) % 3 == 0 else "fit", **found}


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def used():
    """Return CPU time of user and system [s], page faults without reads, and changes of context."""
    one = resource.getrusage(resource.RUSAGE_SELF)
    return [one.ru_utime, one.ru_stime, one.ru_minflt, one.ru_nvcsw, one.ru_nivcsw]


def configuration(case):
    layers = 2 if TINY else case["layers"]
    return transformers.AutoConfig.for_model(**{**MODELS[case["model"]], "num_hidden_layers": layers})


def tokens_of(case):
    size = (case["batch"], 32 if TINY else case["length"])
    return torch.randint(0, MODELS[case["model"]]["vocab_size"], size, device=DEVICE)


def seconds_of(work):
    synchronize()
    begin = time.perf_counter()
    work()
    synchronize()
    return round(time.perf_counter() - begin, 6)


# -- DeepSpeed ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def timed(subject, rows):
    """Record begin and end of methods of DeepSpeed's optimizer [s]; nothing waits for the GPU."""

    def wrap(name, method):
        def call(*arguments, **named):
            begin = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                rows.append([name, begin, time.perf_counter()])

        return call

    there = [name for name in METHODS if callable(getattr(subject, name, None))]
    for name in there:
        setattr(subject, name, wrap(name, getattr(subject, name)))
    try:
        yield
    finally:
        for name in there:
            delattr(subject, name)


def engine_of(case):
    import deepspeed

    zero = {"stage": case["stage"], "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    if case["stage"] == 3:
        zero["sub_group_size"] = 20_000 if TINY and case["sub_group"] < 10**9 else case["sub_group"]
        if case["on_cpu"]:
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    settings = {"train_micro_batch_size_per_gpu": case["batch"], "bf16": {"enabled": True}}
    settings |= {"zero_optimization": zero, "steps_per_print": 10**9}
    settings["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-5}}
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = transformers.AutoModelForCausalLM.from_config(configuration(case))
    torch.set_default_dtype(torch.float32)
    if case["checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    return deepspeed.initialize(model=model, config=settings, model_parameters=model.parameters())[0]


def zero_step(engine, tokens, *, parts):
    """Return times of a step [s]: of the whole with one wait, or of its parts."""
    if not parts:

        def whole():
            engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
            engine.step()

        return {"step": seconds_of(whole)}
    kept = {}

    def forward():
        kept["loss"] = engine(input_ids=tokens, labels=tokens, use_cache=False).loss

    row = {"forward": seconds_of(forward), "backward": seconds_of(lambda: engine.backward(kept["loss"]))}
    rows = []
    with timed(engine.optimizer, rows):
        before, begin = used(), time.perf_counter()
        row["optimizer"] = seconds_of(engine.step)
        row["used"] = [round(one - other, 4) for one, other in zip(used(), before, strict=True)]
    row["methods"] = [[name, round(one - begin, 6), round(two - one, 6)] for name, one, two in rows]
    return row


def loops(engine):
    """Return times of the optimizer's loops on its own tensors, one after the other [s]."""
    optimizer = engine.optimizer
    flats = getattr(optimizer, "fp32_partitioned_groups_flat", None)
    flats = list(flats or optimizer.single_partition_of_fp32_groups)
    largest = max(flats, key=lambda one: one.numel()).data
    on_gpu = torch.empty(largest.shape, dtype=torch.bfloat16, device=DEVICE)
    there = torch.empty(largest.shape, dtype=torch.bfloat16)
    found = {"numel": largest.numel(), "pinned": bool(CUDA and largest.is_pinned())}
    other = torch.full_like(largest, 0.1)
    works = {
        "scale": lambda: other.mul_(1.0),
        "round": lambda: there.copy_(largest),
        "round_fresh": lambda: largest.to(torch.bfloat16),
        "to_gpu": lambda: on_gpu.copy_(largest),
        "pageable": lambda: on_gpu.copy_(there),
    }
    for name, work in works.items():
        work()
        found[name] = [seconds_of(work) for _ in range(3)]
    found["gradient_pinned"] = bool(CUDA and flats[0].grad is not None and flats[0].grad.is_pinned())
    return found


def zero_case(case):
    begin = time.perf_counter()
    engine = engine_of(case)
    try:
        tokens = tokens_of(case)
        found = {"loading_s": round(time.perf_counter() - begin, 2), "steps": []}
        for parts in (False, False, True, True, True, False, False, True, True):
            found["steps"].append(zero_step(engine, tokens, parts=parts))
        found["loops"] = loops(engine)
        found["parameters"] = sum(getattr(one, "ds_numel", one.numel()) for one in engine.module.parameters())
        found["skipped_steps"] = engine.skipped_steps
        found["threads"] = torch.get_num_threads()
        found["memory"] = torch.cuda.max_memory_allocated() if CUDA else None
        return found
    finally:
        with contextlib.suppress(Exception):
            engine.destroy()


# -- PyTorch alone -------------------------------------------------------------------------------------


def eager_model(case):
    torch.manual_seed(0)
    kind = case["trained"]
    torch.set_default_dtype(torch.float32 if kind.startswith("float32") else torch.bfloat16)
    with torch.device(DEVICE):
        network = transformers.AutoModelForCausalLM.from_config(configuration(case))
    torch.set_default_dtype(torch.float32)
    if case["checkpointing"]:
        network.gradient_checkpointing_enable({"use_reentrant": False})
    if kind.startswith("adapters"):
        from peft import LoraConfig, get_peft_model

        if case["checkpointing"]:
            network.enable_input_require_grads()
        wanted = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
        network = get_peft_model(network, wanted, autocast_adapter_dtype="float32" in kind)
    network.train()
    return network


def eager_step(call, optimizer, tokens):
    """Return times of a step [s]: of the whole with one wait, then of its parts."""
    kept = {}

    def whole():
        call(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    def forward():
        kept["loss"] = call(tokens)

    def update():
        optimizer.step()
        optimizer.zero_grad()

    row = {"step": seconds_of(whole), "forward": seconds_of(forward)}
    return row | {"backward": seconds_of(kept["loss"].backward), "optimizer": seconds_of(update)}


class Called:
    """A model that is called as ``kernels`` calls it, under autocast if its weights are in float32."""

    def __init__(self, network, autocast):
        self.network, self.autocast = network, autocast

    def __call__(self, **named):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=self.autocast):
            return self.network(**named)

    def zero_grad(self, **named):
        self.network.zero_grad(**named)


def eager_case(case, folder):
    network = eager_model(case)
    tokens = tokens_of(case)
    trained = [one for one in network.parameters() if one.requires_grad]
    called = Called(network, case["trained"].endswith("autocast"))

    def call(tokens):
        return called(input_ids=tokens, labels=tokens, use_cache=False).loss

    found = {"steps": {}, "trained_numel": sum(one.numel() for one in trained), "tensors": len(trained)}
    found["trained_dtype"] = str(trained[0].dtype)
    for name, more in (("foreach", {}), ("fused", {"fused": True})):
        optimizer = torch.optim.AdamW(trained, lr=1e-5, **more)
        found["steps"][name] = [eager_step(call, optimizer, tokens) for _ in range(7)]
        if name == "foreach" and CUDA:
            found["memory"] = torch.cuda.max_memory_allocated()
        del optimizer
    if case["model"] in TRACED and not case["trained"].endswith("autocast"):
        path = Path(__file__).parents[1] / "h200-2026-11-29" / "layer_kernels.py"
        known = importlib.util.spec_from_file_location("layer_kernels", path)
        layer_kernels = importlib.util.module_from_spec(known)
        known.loader.exec_module(layer_kernels)
        found["kernels"] = layer_kernels.kernels(called, tokens, folder)
    return found


def main(kind, file, seconds):
    until = time.time() + float(seconds)
    path = Path(file)
    if kind == "zero":
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ.setdefault("MASTER_PORT", "29611")
        import deepspeed

        deepspeed.init_distributed()
    record = {"what": __doc__.partition("\n")[0], "torch": torch.__version__}
    record |= {"transformers": transformers.__version__, "models": MODELS, "runs": [], "errors": []}
    longest = 0.0
    for case in (named(kind, one) for one in {"zero": ZERO, "eager": EAGER}[kind]):
        begin = time.time()
        if begin + longest > until:
            record["errors"].append([case["name"], "no time was left"])
            path.write_text(json.dumps(record, separators=(",", ":")))
            continue
        try:
            found = zero_case(case) if kind == "zero" else eager_case(case, path.parent)
            record["runs"].append({**case, **found, "seconds": round(time.time() - begin, 1)})
        except Exception:
            record["errors"].append([case["name"], traceback.format_exc()[-1500:]])
            print(traceback.format_exc()[-600:], flush=True)
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            with contextlib.suppress(AttributeError):
                torch._C._host_emptyCache()
        longest = max(longest, 0.8 * (time.time() - begin))
        path.write_text(json.dumps(record, separators=(",", ":")))
        print(case["name"], f"{time.time() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
