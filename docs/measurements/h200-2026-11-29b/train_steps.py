"""Whole training steps of transformers' code with a few layers of real width: train_steps.py FILE SECONDS

Layers of Llama and Qwen2 in bfloat16 with all states in GPU memory: forward, backward, and PyTorch's
AdamW with its defaults, over all weights or over adapters of rank 16 in all linear layers (PEFT). All are
held out: they judge predictions, and nothing is derived from them.
"""

import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch
import transformers

TINY = bool(os.environ.get("TINY"))
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
STEPS = 3 if TINY else 9


def llama(hidden, forward, heads, keys, vocabulary, kind="llama"):
    shape = (64, 128, 4, 2, 512) if TINY else (hidden, forward, heads, keys, vocabulary)
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    return {"model_type": kind, "max_position_embeddings": 8192, **dict(zip(names, shape, strict=True))}


MODELS = {
    "llama-2-7b": llama(4096, 11008, 32, 32, 32000),
    "llama-3-8b": llama(4096, 14336, 32, 8, 128256),
    "qwen2.5-7b": llama(3584, 18944, 28, 4, 152064, "qwen2"),
}
CASES = (  # model, layers, batch, length, adapters, checkpointing
    ("llama-2-7b", 4, 1, 4096, False, False),
    ("llama-2-7b", 4, 1, 4096, False, True),
    ("llama-2-7b", 4, 2, 2048, True, False),
    ("llama-2-7b", 8, 1, 4096, True, True),
    ("llama-3-8b", 3, 2, 2048, False, True),
    ("qwen2.5-7b", 4, 4, 1024, True, False),
    ("qwen2.5-7b", 3, 1, 2048, False, False),
)


def build(model, layers, adapters, checkpointing):
    config = transformers.AutoConfig.for_model(**MODELS[model], num_hidden_layers=layers)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        network = transformers.AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    if checkpointing:
        network.gradient_checkpointing_enable({"use_reentrant": False})
    if adapters:
        from peft import LoraConfig, get_peft_model

        network = get_peft_model(network, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    network.train()
    return network


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def step(network, optimizer, tokens):
    """Return times of a step by part [s]: of the whole with one wait at its end, and of its parts."""
    synchronize()
    begin = time.perf_counter()
    loss = network(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    returned = time.perf_counter() - begin
    synchronize()
    row = {"step": time.perf_counter() - begin, "returned": returned}
    begin = time.perf_counter()
    loss = network(input_ids=tokens, labels=tokens, use_cache=False).loss
    synchronize()
    row["forward"] = time.perf_counter() - begin
    begin = time.perf_counter()
    loss.backward()
    synchronize()
    row["backward"] = time.perf_counter() - begin
    begin = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    synchronize()
    row["optimizer"] = time.perf_counter() - begin
    return {key: round(value, 6) for key, value in row.items()}


def main(file, seconds):
    until = time.time() + float(seconds)
    path = Path(file)
    record = {"what": __doc__.partition("\n")[0], "set": "holdout", "torch": torch.__version__}
    record |= {"transformers": transformers.__version__, "models": MODELS, "runs": [], "errors": []}
    for case in CASES:
        if time.time() > until:
            record["errors"].append([case, "no time was left"])
            continue
        begin = time.time()
        try:
            model, layers, batch, length, adapters, checkpointing = case
            network = build(model, layers, adapters, checkpointing)
            trained = [one for one in network.parameters() if one.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=1e-5)
            tokens = torch.randint(
                0, MODELS[model]["vocab_size"], (batch, 32 if TINY else length), device=DEVICE
            )
            steps = [step(network, optimizer, tokens) for _ in range(STEPS)]
            names = ("model", "layers", "batch", "length", "adapters", "checkpointing")
            record["runs"].append({**dict(zip(names, case, strict=True)), "steps": steps})
            record["runs"][-1]["trained"] = sum(one.numel() for one in trained)
            record["runs"][-1]["parameters"] = sum(one.numel() for one in network.parameters())
            record["runs"][-1]["memory"] = torch.cuda.max_memory_allocated() if CUDA else None
            print(case, f"{time.time() - begin:.1f} s", flush=True)
        except Exception:
            record["errors"].append([case, traceback.format_exc()[-1500:]])
            print(case, traceback.format_exc()[-400:], flush=True)
        network = optimizer = trained = None
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        path.write_text(json.dumps(record, separators=(",", ":")))


if __name__ == "__main__":
    main(*sys.argv[1:])
