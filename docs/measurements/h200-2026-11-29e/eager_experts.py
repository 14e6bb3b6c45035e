"""Tokens of ``generate``, and of experts in batched products: eager_experts.py FILE SECONDS

``generate`` of transformers replaces grouped products of experts by batched ones once the prompt is
computed (``_optimize_model_for_decode`` in generation/utils.py), which copy an expert's weights for each
token. Prompts have no padding token. Times of steps are those between tokens, with small launches before and
after.
"""

import gc
import json
import os
import sys
import time
import traceback
import zlib
from pathlib import Path

import torch
import transformers

sys.argv = [sys.argv[0], sys.argv[1], sys.argv[2]]
FILE, SECONDS = Path(sys.argv[1]), float(sys.argv[2])
UNTIL = time.time() + SECONDS
TINY = bool(os.environ.get("TINY"))
DEVICE = "cpu" if TINY else "cuda"
STEPS, PROMPT = (3, 16) if TINY else (16, 256)
clock = time.perf_counter
QWEN = {"head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "vocab_size": 151936}
MODELS = {
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "num_hidden_layers": 6,
        "max_position_embeddings": 8192,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_hidden_layers": 16,
        "max_position_embeddings": 8192,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        **QWEN,
    },
    "qwen3-8b": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 36,
        "max_position_embeddings": 8192,
        **QWEN,
    },
}
if TINY:
    for one in MODELS.values():
        one.update({"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 512})
        one.update({"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16})
        if "moe_intermediate_size" in one:
            one.update({"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2})
BATCHES = {
    "mixtral-8x7b": (1, 2, 4, 12, 24, 48),
    "qwen3-30b-a3b": (1, 4, 16, 64, 128),
    "qwen3-8b": (1, 8, 32),
}
RECORD = {"what": __doc__.partition("\n")[0], "torch": torch.__version__, "models": MODELS, "prompt": PROMPT}
RECORD |= {"transformers": transformers.__version__, "runs": [], "kernels": {}, "errors": []}


def save():
    FILE.write_text(json.dumps(RECORD, separators=(",", ":")))


def synchronize():
    if not TINY:
        torch.cuda.synchronize()


def launches():
    one, found = torch.ones(16, device=DEVICE), []
    for _ in range(3):
        synchronize()
        begin = clock()
        for _ in range(200):
            one.add_(1)
        found.append(round((clock() - begin) / 200 * 1e6, 2))
    synchronize()
    return found


class Stamps(transformers.StoppingCriteria):
    def __init__(self):
        self.times = []

    def __call__(self, ids, _scores, **_more):
        self.times.append(clock())
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)


def generate(model, ids):
    stamps = Stamps()
    before = launches()
    begin = clock()
    model.generate(ids, max_new_tokens=1 + STEPS, do_sample=False, stopping_criteria=[stamps])
    synchronize()
    end = clock()
    row = {"stamps": [round(one - begin, 7) for one in stamps.times], "seconds": round(end - begin, 7)}
    return row | {"launch_us": before + launches()}


def passes(model, ids, how):
    """Return times of the prompt's pass, in grouped products, and of decode steps; each is waited for."""
    found, cache = [], None
    before = launches()
    for index in range(1 + STEPS):
        if how != "eager":
            model.set_experts_implementation(how if index else "grouped_mm")
        synchronize()
        begin = clock()
        out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        ids, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
        synchronize()
        found.append(round(clock() - begin, 7))
    return {"steps": found, "launch_us": before + launches()}


def kernels(model, ids, how):
    from torch.profiler import ProfilerActivity, profile

    out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    following = out.logits[:, -1:].argmax(-1)
    model.set_experts_implementation(how)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        model(input_ids=following, past_key_values=out.past_key_values, use_cache=True, logits_to_keep=1)
        synchronize()
    model.set_experts_implementation("grouped_mm")
    rows = [[one.key[:110], one.count, round(one.self_device_time_total, 1)] for one in found.key_averages()]
    return sorted((row for row in rows if row[2]), key=lambda row: -row[2])[:25]


def main():
    for name, settings in MODELS.items():
        config = transformers.AutoConfig.for_model(**settings)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(DEVICE):
            model = transformers.AutoModelForCausalLM.from_config(config)
        torch.set_default_dtype(torch.float32)
        with torch.no_grad():
            for one in model.parameters():
                if one.dim() > 1:
                    one.normal_(0, 0.02)
        model.eval()
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        mixture = name != "qwen3-8b"
        for batch in BATCHES[name]:
            key = f"{name}, batch {batch}, prompt {PROMPT}"
            if time.time() > UNTIL - 8:
                RECORD["errors"].append([key, "no time was left"])
                continue
            try:
                torch.manual_seed(batch)
                ids = torch.randint(1, settings["vocab_size"], (batch, PROMPT), device=DEVICE)
                row = {"name": key, "set": "holdout" if zlib.crc32(key.encode()) % 3 == 0 else "fit"}
                row |= {"model": name, "batch": batch, "layers": settings["num_hidden_layers"]}
                with torch.no_grad():
                    generate(model, ids)
                    row["generate"] = [generate(model, ids) for _ in range(3)]
                    for how in ("grouped_mm", "batched_mm") if mixture else ("eager",):
                        passes(model, ids, how)
                        row[how] = [passes(model, ids, how) for _ in range(2)]
                        if not TINY and mixture and batch in (4, 24, 64):
                            RECORD["kernels"][f"{key}, {how}"] = kernels(model, ids, how)
                    if mixture:
                        model.set_experts_implementation("grouped_mm")
                RECORD["runs"].append(row)
                print(key, f"{UNTIL - time.time():.0f} s left", flush=True)
            except Exception:
                RECORD["errors"].append([key, traceback.format_exc()[-1500:]])
                print(traceback.format_exc()[-600:], flush=True)
            gc.collect()
            save()
        del model
        gc.collect()
        if not TINY:
            torch.cuda.empty_cache()
    save()
    print("DONE", flush=True)


main()
