"""Decode steps of tiny and real models of several depths, in turn: eager_rounds.py FILE SECONDS

All models are in GPU memory at once, and each round times some steps of every one of them, so that the host's
noise is the same for all. Caches are cut back to their length after each round, so that no length is new
after the first. Each round begins with probes of the host: launches of a small kernel, calls of a module.
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
STEPS = 2 if TINY else 8


def llama(hidden, forward, heads, keys, vocabulary=32000, kind="llama"):
    hidden, forward, vocabulary = (16 * heads, 64, 256) if TINY else (hidden, forward, vocabulary)
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
    "qwen2.5-1.5b": llama(1536, 8960, 12, 2, 151936, "qwen2"),
    "opt-2.7b": {
        "model_type": "opt",
        "hidden_size": 128 if TINY else 2560,
        "ffn_dim": 128 if TINY else 10240,
        "num_attention_heads": 32,
        "vocab_size": 256 if TINY else 50272,
        "max_position_embeddings": 8192,
        "word_embed_proj_dim": 128 if TINY else 2560,
    },
}
DEPTHS = {
    "tiny": (2, 8, 28),
    "llama-3.2-3b": (2, 8, 28),
    "llama-3-8b": (8, 32),
    "qwen2.5-1.5b": (8, 28),
    "opt-2.7b": (8, 32),
}


def cases():
    for model, depths in DEPTHS.items():
        for layers in depths:
            for batch, context in ((1, 200), (1, 4096), (8, 200)):
                if batch == 8 and model not in ("tiny", "llama-3.2-3b"):
                    continue
                name = f"{model}, {layers} layers, batch {batch}, context {context}"
                half = "holdout" if zlib.crc32(name.encode()) % 3 == 0 else "fit"
                yield {"name": name, "set": half, "model": model, "layers": layers, "batch": batch} | {
                    "context": 16 if TINY else context
                }


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


class Generation:
    """A model with the cache of a batch, which is cut back after each round."""

    def __init__(self, model, case):
        self.model, self.case = model, case
        self.tokens = torch.randint(0, 200, (case["batch"], case["context"]), device=DEVICE)
        self.cache = None
        self.step()
        self.length = self.cache.get_seq_length()

    def step(self):
        found = self.model(
            input_ids=self.tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        self.tokens, self.cache = found.logits[:, -1:].argmax(-1), found.past_key_values

    def cut(self):
        if (more := self.cache.get_seq_length() - self.length) > 0:
            self.cache.crop(-more)

    def round(self):
        """Return host time and whole time of each step, and the time of one of several without waits [s]."""
        self.cut()
        self.step()
        synchronize()
        times = []
        for _ in range(STEPS):
            begin = time.perf_counter()
            self.step()
            returned = time.perf_counter() - begin
            synchronize()
            times.append([round(returned, 7), round(time.perf_counter() - begin, 7)])
        self.cut()
        self.step()
        synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS):
            self.step()
        synchronize()
        return {"steps": times, "without_waits": round((time.perf_counter() - begin) / STEPS, 7)}


def probe():
    """Return the time of a launch and of a call of a module without work [s]."""
    small, module = torch.ones(64, device=DEVICE), torch.nn.Identity()
    found = []
    for work in (lambda: small.mul_(1.0), lambda: module(small)):
        synchronize()
        begin = time.perf_counter()
        for _ in range(1000):
            work()
        found.append(round((time.perf_counter() - begin) / 1000, 9))
        synchronize()
    return found


def build(name, layers):
    config = transformers.AutoConfig.for_model(**MODELS[name], num_hidden_layers=layers)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def main(file, seconds):
    until = time.time() + float(seconds)
    path = Path(file)
    record = {"what": __doc__.partition("\n")[0], "torch": torch.__version__, "models": MODELS, "errors": []}
    record |= {"transformers": transformers.__version__, "runs": {}, "probes": []}
    torch.manual_seed(0)
    models, generations = {}, {}
    with torch.no_grad():
        for case in cases():
            key = case["model"], case["layers"]
            try:
                if key not in models:
                    models[key] = build(*key)
                generations[case["name"]] = Generation(models[key], case)
                record["runs"][case["name"]] = {**case, "rounds": []}
            except Exception:
                record["errors"].append([case["name"], traceback.format_exc()[-1200:]])
                print(case["name"], traceback.format_exc()[-400:], flush=True)
        record["building_s"] = round(time.time() + float(seconds) - until, 1)
        first, last = True, 0.0
        while time.time() + last < until:
            began = time.time()
            record["probes"].append(probe())
            for name, generation in list(generations.items()):
                try:
                    found = generation.round()
                    record["runs"][name]["first" if first else "rounds"] = (
                        found if first else [*record["runs"][name]["rounds"], found]
                    )
                except Exception:
                    record["errors"].append([name, traceback.format_exc()[-1200:]])
                    del generations[name]
            last = time.time() - began
            record["seconds_of_round"] = round(last, 2)
            path.write_text(json.dumps(record, separators=(",", ":")))
            first = False
            gc.collect()
    for name, run in record["runs"].items():
        steps = [one[1] for each in run["rounds"] for one in each["steps"]]
        waits = [each["without_waits"] for each in run["rounds"]]
        if steps:
            print(
                name, f"{1e3 * statistics.median(steps):.3f} {1e3 * min(steps):.3f} {1e3 * min(waits):.3f} ms"
            )
    print("rounds", len(record["probes"]), record["building_s"], [one[0] for one in record["errors"]])
    path.write_text(json.dumps(record, separators=(",", ":")))


if __name__ == "__main__":
    main(*sys.argv[1:])
