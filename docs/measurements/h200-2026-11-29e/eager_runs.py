"""Whole generations of transformers' eager code on one GPU, all in its memory: eager_runs.py FILE SECONDS

Each case builds prompts of random tokens and times the prompt's pass and decode steps one by one with a wait
after each, then ``model.generate`` as a user calls it. A first generation, whose lengths are new to the
process, is kept apart. The set of a case follows from the hash of its name. No time is printed.
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

FILE, SECONDS = Path(sys.argv[1]), float(sys.argv[2])
UNTIL = time.time() + SECONDS
TINY = bool(os.environ.get("TINY"))
DEVICE = "cpu" if TINY else "cuda"
STEPS = 12
"""The number of decode steps of a generation."""
clock = time.perf_counter


def dense(kind, hidden, forward, heads, keys, vocabulary, layers, **more):
    found = {"model_type": kind, "hidden_size": hidden, "intermediate_size": forward, **more}
    found |= {"num_attention_heads": heads, "num_key_value_heads": keys, "vocab_size": vocabulary}
    return found | {"num_hidden_layers": layers, "max_position_embeddings": 8192}


QWEN = {"head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
MODELS = {
    "qwen3-0.6b": dense("qwen3", 1024, 3072, 16, 8, 151936, 28, tie_word_embeddings=True, **QWEN),
    "llama-3-8b": dense("llama", 4096, 14336, 32, 8, 128256, 32, rope_theta=5e5),
    "opt-6.7b": {
        "model_type": "opt",
        "hidden_size": 4096,
        "ffn_dim": 16384,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "vocab_size": 50272,
        "word_embed_proj_dim": 4096,
        "max_position_embeddings": 2048,
    },
    "qwen3-30b-a3b": dense(
        "qwen3_moe",
        2048,
        6144,
        32,
        4,
        151936,
        12,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        **QWEN,
    ),
    "mixtral-8x7b": dense(
        "mixtral", 4096, 14336, 32, 8, 32000, 8, num_local_experts=8, num_experts_per_tok=2
    ),
    "qwen3-1.7b": dense("qwen3", 2048, 6144, 16, 8, 151936, 28, tie_word_embeddings=True, **QWEN),
    "qwen3-8b": dense("qwen3", 4096, 12288, 32, 8, 151936, 36, **QWEN),
}
BATCHES = (1, 8, 32)
PROMPTS = (128, 1024, 4096)
if TINY:
    STEPS, PROMPTS, BATCHES = 3, (16, 32), (1, 2)
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    for one in MODELS.values():
        one.update({key: value for key, value in small.items() if key in one})
        if one["model_type"] == "opt":
            one.update({"ffn_dim": 128, "word_embed_proj_dim": 64})
        if "moe_intermediate_size" in one:
            one.update({"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2})

RECORD = {
    "what": __doc__.partition("\n")[0],
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "models": MODELS,
    "steps": STEPS,
    "columns": ["returned", "seconds"],
    "runs": [],
    "errors": [],
}


def save():
    FILE.write_text(json.dumps(RECORD, separators=(",", ":")))


def synchronize():
    if not TINY:
        torch.cuda.synchronize()


def timed(work):
    """Return the times [s] after which ``work`` has returned, and after which the GPU is done with it."""
    synchronize()
    begin = clock()
    work()
    returned = clock()
    synchronize()
    return [round(returned - begin, 7), round(clock() - begin, 7)]


def launches():
    """Return the host time of a small launch [us] in five rounds, to show how noisy the host is."""
    one, found = torch.ones(16, device=DEVICE), []
    for _ in range(5):
        synchronize()
        begin = clock()
        for _ in range(200):
            one.add_(1)
        found.append(round((clock() - begin) / 200 * 1e6, 2))
    synchronize()
    return found


def built(name):
    config = transformers.AutoConfig.for_model(**MODELS[name])
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
    return model


def generation(model, ids):
    """Return times of a prompt's pass and of decode steps."""
    state = {"ids": ids, "cache": None}
    more = {} if model.config.model_type == "opt" else {"logits_to_keep": 1}

    def step():
        out = model(input_ids=state["ids"], past_key_values=state["cache"], use_cache=True, **more)
        state["ids"], state["cache"] = out.logits[:, -1:].argmax(-1), out.past_key_values

    return [timed(step) for _ in range(1 + STEPS)]


class Stamps(transformers.StoppingCriteria):
    """Keep the time at which each token was chosen; nothing waits, as in a user's call."""

    def __init__(self):
        self.times = []

    def __call__(self, ids, _scores, **_more):
        self.times.append(clock())
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)


def generate(model, ids):
    """Return the times [s] at which tokens of ``generate`` were chosen, and the whole call's."""
    stamps = Stamps()
    synchronize()
    begin = clock()
    model.generate(ids, max_new_tokens=1 + STEPS, do_sample=False, stopping_criteria=[stamps])
    synchronize()
    end = clock()
    return {"stamps": [round(one - begin, 7) for one in stamps.times], "seconds": round(end - begin, 7)}


def case_of(model, name, batch, prompt):
    key = f"{name}, batch {batch}, prompt {prompt}"
    row = {"name": key, "set": "holdout" if zlib.crc32(key.encode()) % 3 == 0 else "fit"}
    row |= {"model": name, "batch": batch, "prompt": prompt, "launch_us": launches()}
    torch.manual_seed(batch + prompt)
    ids = torch.randint(0, MODELS[name]["vocab_size"], (batch, prompt), device=DEVICE)
    if not TINY:
        torch.cuda.reset_peak_memory_stats()
    begin = time.time()
    with torch.no_grad():
        row["first"] = generation(model, ids)
        row["generations"] = [generation(model, ids) for _ in range(2 if batch * prompt > 40_000 else 3)]
        row["memory"] = 0 if TINY else torch.cuda.max_memory_allocated()
        generate(model, ids) if batch * prompt <= 40_000 else None
        row["generate"] = [generate(model, ids) for _ in range(1 if batch * prompt > 40_000 else 2)]
    row["seconds"] = round(time.time() - begin, 2)
    row["launch_us"] += launches()
    RECORD["runs"].append(row)
    return key


def main():
    for name in MODELS:
        if time.time() > UNTIL - 6:
            RECORD["errors"].append([name, "no time was left"])
            continue
        try:
            begin = time.time()
            model = built(name)
            RECORD.setdefault("building_s", {})[name] = round(time.time() - begin, 2)
            RECORD.setdefault("attention", {})[name] = model.config._attn_implementation
            RECORD.setdefault("experts", {})[name] = getattr(model.config, "_experts_implementation", None)
        except Exception:
            RECORD["errors"].append([name, traceback.format_exc()[-1500:]])
            print(traceback.format_exc()[-600:], flush=True)
            continue
        for prompt in PROMPTS:
            for batch in BATCHES:
                if prompt > MODELS[name]["max_position_embeddings"] - STEPS - 2:
                    continue
                if time.time() > UNTIL - (4 if batch * prompt < 40_000 else 18):
                    RECORD["errors"].append([f"{name}, batch {batch}, prompt {prompt}", "no time was left"])
                    continue
                try:
                    print(
                        case_of(model, name, batch, prompt), f"{UNTIL - time.time():.0f} s left", flush=True
                    )
                except Exception:
                    RECORD["errors"].append([f"{name}, {batch}, {prompt}", traceback.format_exc()[-1500:]])
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
