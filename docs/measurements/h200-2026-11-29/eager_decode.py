# ruff: noqa: PERF401
"""Decode steps of real and tiny layers in transformers' code, all in GPU memory: eager_decode.py FILE SECONDS

Models of two and eight layers of a real size, so that their difference is six layers. Times come from runs
without the profiler: of the host thread until the step returned, and of the whole step. Operations and
kernels come from one step under the profiler.
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
STEPS = 3 if TINY else 16


def llama(hidden, forward, heads, keys, vocabulary=32000, kind="llama"):
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": forward,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
    }


MODELS = {
    "tiny": llama(768, 1536, 12, 6, 1024),
    "llama-3.2-3b": llama(3072, 8192, 24, 8, 128256),
    "llama-3-8b": llama(4096, 14336, 32, 8, 128256),
    "tinyllama-1.1b": llama(2048, 5632, 32, 4),
    "qwen2.5-1.5b": llama(1536, 8960, 12, 2, 151936, "qwen2"),
    "opt-2.7b": {
        "model_type": "opt",
        "hidden_size": 2560,
        "ffn_dim": 10240,
        "num_attention_heads": 32,
        "vocab_size": 50272,
        "max_position_embeddings": 8192,
        "word_embed_proj_dim": 2560,
    },
}


def cases():
    for model in MODELS:
        for batch, context in ((1, 200), (1, 4096), (8, 200), (8, 1024), (4, 8)):
            if (batch, context) == (4, 8) and model != "tiny":
                continue
            name = f"{model}, batch {batch}, context {context}"
            half = "holdout" if zlib.crc32(name.encode()) % 3 == 0 else "fit"
            yield {
                "name": name,
                "set": half,
                "model": model,
                "batch": batch,
                "context": 16 if TINY else context,
            }


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def generation(model, case):
    tokens = torch.randint(0, 1000, (case["batch"], case["context"]), device=DEVICE)
    state = {"tokens": tokens, "cache": None}

    def step():
        found = (
            model(input_ids=state["tokens"], past_key_values=state["cache"], use_cache=True, logits_to_keep=1)
            if "logits" in case["keeps"]
            else model(input_ids=state["tokens"], past_key_values=state["cache"], use_cache=True)
        )
        state["tokens"] = found.logits[:, -1:].argmax(-1)
        state["cache"] = found.past_key_values

    return step


def profiled(step):
    """Return operations, calls of the driver and kernels of one step under the profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if CUDA else []
    with torch.profiler.profile(activities=activities) as profiler:
        begin = time.perf_counter()
        step()
        returned = time.perf_counter() - begin
        synchronize()
    rows = []
    for one in profiler.key_averages():
        rows.append(
            [
                one.key[:120],
                one.count,
                round(one.self_cpu_time_total, 1),
                round(getattr(one, "self_device_time_total", 0.0), 1),
                str(one.device_type).rpartition(".")[2],
            ]
        )
    return {
        "columns": ["name", "count", "self_cpu_us", "self_device_us", "device"],
        "rows": rows,
        "returned_s": returned,
    }


def measure(case):
    import inspect

    found = {**case, "layers": {}}
    for layers in (2, 8):
        config = transformers.AutoConfig.for_model(**MODELS[case["model"]], num_hidden_layers=layers)
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(DEVICE):
            model = transformers.AutoModelForCausalLM.from_config(config).eval()
        torch.set_default_dtype(torch.float32)
        case["keeps"] = "logits" if "logits_to_keep" in inspect.signature(model.forward).parameters else ""
        gc.collect()
        with torch.no_grad():
            first = []
            step = generation(model, case)
            for _ in range(2 * STEPS + 8):  # plans attention for each length
                begin = time.perf_counter()
                step()
                synchronize()
                first.append(round(time.perf_counter() - begin, 6))
            step = generation(model, case)
            for _ in range(4):
                step()
            synchronize()
            times = []
            for _ in range(STEPS):
                begin = time.perf_counter()
                step()
                returned = time.perf_counter() - begin
                synchronize()
                times.append([round(returned, 7), round(time.perf_counter() - begin, 7)])
            synchronize()
            begin = time.perf_counter()
            for _ in range(STEPS):
                step()
            synchronize()
            together = (time.perf_counter() - begin) / STEPS
            profiled(step)
            traced = profiled(step)
        found["layers"][layers] = {
            "columns": ["returned", "seconds"],
            "first_seconds": first,
            "steps": times,
            "without_waits": together,
            "profile": traced,
        }
        found["attention"] = getattr(model.config, "_attn_implementation", None)
        del model, step
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()
    return found


def main(file, seconds):
    until = time.time() + float(seconds)
    path = Path(file)
    record = {
        "what": __doc__.partition("\n")[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    record |= {"models": MODELS, "runs": []}
    for case in cases():
        if time.time() > until:
            record.setdefault("left_out", []).append(case["name"])
            continue
        begin = time.time()
        try:
            found = measure(case)
            record["runs"].append(found)
            two, eight = (
                statistics.median(one[1] for one in found["layers"][number]["steps"]) for number in (2, 8)
            )
            print(
                f"{case['name']}: {1e3 * two:.3f} ms, a layer {1e3 * (eight - two) / 6:.4f} ms",
                round(time.time() - begin, 1),
            )
        except Exception:
            record.setdefault("errors", []).append([case["name"], traceback.format_exc()[-1500:]])
            print(case["name"], traceback.format_exc()[-400:])
        path.write_text(json.dumps(record, separators=(",", ":")))


if __name__ == "__main__":
    main(*sys.argv[1:])
