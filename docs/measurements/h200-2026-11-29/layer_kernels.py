# ruff: noqa: B023, PLW0108, PLW2901, RET504
"""Kernels of two real decoder layers in training, with head and loss: layer_kernels.py FILE SECONDS

Times come from runs without the profiler; kernels, with the operation that launched each and its shapes, from
one step under it. Differences between models of one and two layers are one layer.
"""

import gc
import json
import os
import statistics
import sys
import time
import traceback
import zlib
from pathlib import Path

import torch
import transformers

TINY = bool(os.environ.get("TINY"))
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def llama(hidden, forward, heads, keys, vocabulary=32000):
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": forward,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
    }


MODELS = {
    "llama-2-7b": llama(4096, 11008, 32, 32),
    "llama-3-8b": llama(4096, 14336, 32, 8, 128256),
    "llama-3.2-3b": llama(3072, 8192, 24, 8, 128256),
    "opt-6.7b": {
        "model_type": "opt",
        "hidden_size": 4096,
        "ffn_dim": 16384,
        "num_attention_heads": 32,
        "vocab_size": 50272,
        "max_position_embeddings": 4096,
        "word_embed_proj_dim": 4096,
        "dropout": 0.0,
    },
    "qwen2.5-1.5b": {
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "max_position_embeddings": 8192,
    },
}
if TINY:
    for one in MODELS.values():
        one |= {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128}
        one |= (
            {"ffn_dim": 128, "word_embed_proj_dim": 64}
            if one["model_type"] == "opt"
            else {"intermediate_size": 128}
        )
        one |= {"num_key_value_heads": 2} if "num_key_value_heads" in one else {}


def cases():
    shapes = {
        "llama-2-7b": ((1, 4096), (2, 2048), (8, 512)),
        "llama-3-8b": ((1, 4096), (4, 1024)),
        "llama-3.2-3b": ((1, 4096),),
        "opt-6.7b": ((2, 2048),),
        "qwen2.5-1.5b": ((4, 1024),),
    }
    for model, sizes in shapes.items():
        for batch, length in sizes:
            for kind in ("plain", "checkpointing", "LoRA"):
                if kind == "LoRA" and batch > 1 and model != "llama-3-8b":
                    continue
                name = f"{model}, {batch} x {length}, {kind}"
                half = "holdout" if zlib.crc32(name.encode()) % 3 == 0 else "fit"
                yield {
                    "name": name,
                    "set": half,
                    "model": model,
                    "batch": batch,
                    "length": 32 if TINY else length,
                    "kind": kind,
                }


def build(case, layers):
    config = transformers.AutoConfig.for_model(**MODELS[case["model"]], num_hidden_layers=layers)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = transformers.AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    if case["kind"] == "checkpointing":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if case["kind"] == "LoRA":
        from peft import LoraConfig, get_peft_model

        chosen = ["q_proj", "k_proj", "v_proj"]
        model = get_peft_model(
            model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=chosen)
        )
    model.train()
    return model


def step(model, tokens):
    """Run one step and return times of the device for forward and backward, and of the host [s]."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)] if CUDA else []
    begin = time.perf_counter()
    if CUDA:
        marks[0].record()
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    forward = time.perf_counter()
    if CUDA:
        marks[1].record()
    loss.backward()
    end = time.perf_counter()
    if CUDA:
        marks[2].record()
        torch.cuda.synchronize()
    model.zero_grad(set_to_none=True)
    row = {"host_forward": forward - begin, "host_backward": end - forward}
    if CUDA:
        row |= {
            "forward": marks[0].elapsed_time(marks[1]) / 1e3,
            "backward": marks[1].elapsed_time(marks[2]) / 1e3,
        }
    return {key: round(value, 7) for key, value in row.items()}


def kernels(model, tokens, folder):
    """Return the kernels of one step: begin and duration [us], name, operation, its shapes and types."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if CUDA else []
    file = folder / "trace.json"
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        with torch.profiler.record_function("STEP forward"):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        with torch.profiler.record_function("STEP backward"):
            loss.backward()
        if CUDA:
            torch.cuda.synchronize()
    model.zero_grad(set_to_none=True)
    profiler.export_chrome_trace(str(file))
    events = json.loads(file.read_text())["traceEvents"]
    file.unlink()
    operations = {}
    bounds = {}
    for event in events:
        arguments = event.get("args", {})
        if event.get("cat") == "cpu_op" and "External id" in arguments:
            # nested operations share no id: the innermost one launches
            operations[arguments["External id"]] = event
        if event.get("name") in ("STEP forward", "STEP backward") and event.get("cat") == "user_annotation":
            bounds[event["name"]] = [event["ts"], event["ts"] + event["dur"]]
    launched = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {}):
            launched[event["args"]["correlation"]] = event["ts"]
    found, names, kinds = [], {}, {}
    wanted = ("kernel", "gpu_memcpy", "gpu_memset") if CUDA else ("cpu_op",)
    for event in sorted((one for one in events if one.get("cat") in wanted), key=lambda one: one["ts"]):
        arguments = event.get("args", {})
        by = operations.get(arguments.get("External id"), {})
        details = by.get("args", {})
        at = launched.get(arguments.get("correlation"), event["ts"])
        within = "forward" if at < bounds.get("STEP backward", [at + 1])[0] else "backward"
        kind = json.dumps([by.get("name"), details.get("Input Dims"), details.get("Input type")])
        found.append(
            [
                round(event["ts"] - next(iter(bounds.values()), [0])[0], 2),
                round(event["dur"], 2),
                names.setdefault(event["name"][:160], len(names)),
                kinds.setdefault(kind, len(kinds)),
                within,
                round(at - next(iter(bounds.values()), [0])[0], 2),
                arguments.get("grid"),
                arguments.get("block"),
            ]
        )
    columns = ["begin_us", "us", "name", "operation", "pass", "launched_us", "grid", "block"]
    table = {
        "columns": columns,
        "rows": found,
        "names": list(names),
        "operations": [json.loads(one) for one in kinds],
    }
    return table


def measure(case, folder):
    found = {**case, "layers": {}}
    for layers in (2, 1):
        model = build(case, layers)
        vocabulary = MODELS[case["model"]]["vocab_size"]
        tokens = torch.randint(0, vocabulary, (case["batch"], case["length"]), device=DEVICE)
        rows = [step(model, tokens) for _ in range(10)][3:]
        found["layers"][layers] = {"steps": rows}
        wanted = layers == 2 or case["name"] == "llama-2-7b, 1 x 4096, plain"
        if wanted:
            kernels(model, tokens, folder)  # the first profile is slow
            found["layers"][layers]["kernels"] = kernels(model, tokens, folder)
        found["layers"][layers]["parameters"] = sum(one.numel() for one in model.parameters())
        found["attention"] = getattr(model.config, "_attn_implementation", None)
        del model, tokens
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()
    return found


def rates():
    """Return times of elementwise operations by size, which decide what does not scale with tensor cores."""
    found = []
    for elements in (1 << 20, 1 << 22, 1 << 24, 1 << 26):
        if TINY and elements > 1 << 20:
            break
        a, b = (torch.randn(elements, device=DEVICE).bfloat16() for _ in range(2))
        c = torch.randn(elements, device=DEVICE)
        wide, weight = a.view(-1, 4096), torch.ones(4096, device=DEVICE)
        square = c.view(-1, 4096)
        works = {
            "add bf16": (lambda: a + b, 6),
            "mul bf16": (lambda: a * b, 6),
            "silu bf16": (lambda: torch.nn.functional.silu(a), 4),
            "neg bf16": (lambda: -a, 4),
            "bf16 to fp32": (lambda: a.float(), 6),
            "fp32 to bf16": (lambda: c.bfloat16(), 6),
            "pow fp32": (lambda: c.pow(2), 8),
            "mul fp32": (lambda: c * c, 8),
            "mean fp32 rows": (lambda: square.mean(-1, keepdim=True), 4),
            "mul fp32 by rows": (lambda: square * weight, 8),
            "sum bf16 columns": (lambda: wide.sum(0), 2),
            "softmax fp32 rows": (lambda: torch.softmax(square, -1), 8),
            "clone transposed bf16": (lambda: wide.view(-1, 32, 128).transpose(0, 1).contiguous(), 4),
            "cat bf16": (lambda: torch.cat([a, b]), 8),
        }
        for name, (work, each) in works.items():
            work()
            seconds = []
            for _ in range(5):
                if CUDA:
                    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    torch.cuda._sleep(2_000_000)
                    first.record()
                    for _ in range(10):
                        work()
                    last.record()
                    torch.cuda.synchronize()
                    seconds.append(first.elapsed_time(last) / 1e4)
            found.append({"work": name, "elements": elements, "bytes": each * elements, "seconds": seconds})
    return found


def main(file, seconds):
    until = time.time() + float(seconds)
    path = Path(file)
    record = {
        "what": __doc__.partition("\n")[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    record |= {"rates": rates(), "models": MODELS, "runs": []}
    for case in cases():
        if time.time() > until:
            record.setdefault("left_out", []).append(case["name"])
            continue
        begin = time.time()
        try:
            found = measure(case, path.parent)
            record["runs"].append(found)
            rows = found["layers"][2]["steps"]
            middle = {key: statistics.median(one[key] for one in rows) for key in rows[0]}
            print(
                case["name"],
                {key: f"{1e3 * value:.2f}" for key, value in middle.items()},
                round(time.time() - begin, 1),
            )
        except Exception:
            record.setdefault("errors", []).append([case["name"], traceback.format_exc()[-1500:]])
            print(case["name"], traceback.format_exc()[-400:])
        path.write_text(json.dumps(record, separators=(",", ":")))


if __name__ == "__main__":
    main(*sys.argv[1:])
