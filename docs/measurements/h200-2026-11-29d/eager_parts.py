"""Time prompts of experts in transformers' code and Accelerate's hooks: eager_parts.py FILE SECONDS

``prompts``: four layers of Mixtral 8x7B and of Qwen3-30B-A3B in GPU memory, bfloat16, random weights.
``tensors``: modules with one tensor each in host memory, by size, which Accelerate's hooks bring to the GPU
one by one, pinned and pageable. The set of a case follows from the hash of its name.
"""

import json
import os
import statistics
import sys
import time
import traceback
import zlib
from pathlib import Path

import torch

FILE, SECONDS = Path(sys.argv[1]), float(sys.argv[2])
UNTIL = time.time() + SECONDS
TINY = bool(os.environ.get("TINY"))
DEVICE = "cpu" if TINY else "cuda"
RECORD = {"what": __doc__.partition("\n")[0], "torch": torch.__version__, "prompts": [], "tensors": []}
clock = time.perf_counter


def save():
    FILE.write_text(json.dumps(RECORD, separators=(",", ":")))


def half(name):
    return "holdout" if zlib.crc32(name.encode()) % 3 == 0 else "fit"


def synchronize():
    if not TINY:
        torch.cuda.synchronize()


def configurations():
    from transformers import MixtralConfig, Qwen3MoeConfig

    few = 2 if TINY else 4
    common = {"num_hidden_layers": few, "dtype": "bfloat16", "vocab_size": 32000, "num_attention_heads": 32}
    small = {"hidden_size": 256, "head_dim": 8} if TINY else {}
    yield (
        "mixtral-8x7b",
        MixtralConfig(
            **(
                common
                | {
                    "hidden_size": 4096,
                    "intermediate_size": 512 if TINY else 14336,
                    "num_key_value_heads": 8,
                    "num_local_experts": 8,
                    "num_experts_per_tok": 2,
                }
                | small
            )
        ),
    )
    yield (
        "qwen3-30b-a3b",
        Qwen3MoeConfig(
            **(
                common
                | {
                    "hidden_size": 2048,
                    "moe_intermediate_size": 768,
                    "num_key_value_heads": 4,
                    "num_experts": 128,
                    "num_experts_per_tok": 8,
                    "head_dim": 128,
                    "norm_topk_prob": True,
                }
                | small
            )
        ),
    )


def prompts():
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    for model_name, config in configurations():
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(DEVICE):
            model = AutoModelForCausalLM.from_config(config)
        torch.set_default_dtype(torch.float32)
        with torch.no_grad():
            for one in model.parameters():
                one.normal_(0, 0.02)
        model.eval()
        how = getattr(config, "_experts_implementation", None)
        for tokens in (32, 64) if TINY else (128, 512, 1024, 2048, 4096, 8192):
            name = f"{model_name} prompt of {tokens}"
            ids = torch.randint(0, 32000, (1, tokens), device=DEVICE)
            rows = []
            with torch.no_grad():
                for _ in range(7):
                    synchronize()
                    begin = clock()
                    model(input_ids=ids, use_cache=True, logits_to_keep=1)
                    launched = clock()
                    synchronize()
                    rows.append([round(clock() - begin, 7), round(launched - begin, 7)])
            RECORD["prompts"].append(
                {
                    "name": name,
                    "set": half(name),
                    "model": model_name,
                    "tokens": tokens,
                    "experts": how,
                    "rows": rows,
                }
            )
        save()
        kernels(model, model_name)
        del model
        if not TINY:
            torch.cuda.empty_cache()
        print(model_name, how, flush=True)


def kernels(model, model_name):
    """Record the kernels of one prompt of 2,048 tokens by name."""
    if TINY:
        return
    from torch.profiler import ProfilerActivity, profile

    ids = torch.randint(0, 32000, (1, 2048), device=DEVICE)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CUDA]) as found:
        model(input_ids=ids, use_cache=True, logits_to_keep=1)
        synchronize()
    rows = [
        [one.key[:110], one.count, round(one.device_time_total, 1)]
        for one in found.key_averages()
        if one.device_time_total
    ]
    RECORD.setdefault("kernels", {})[model_name] = sorted(rows, key=lambda row: -row[2])[:30]
    save()


class Many(torch.nn.Module):
    def __init__(self, number, rows):
        super().__init__()
        with torch.device("meta"):
            self.parts = torch.nn.ModuleList(
                torch.nn.Linear(128, rows, bias=False, dtype=torch.bfloat16) for _ in range(number)
            )

    def forward(self, x):
        for one in self.parts:
            one(x)
        return x


def tensors():
    from accelerate import cpu_offload

    for kib in (64, 256, 1024, 4096, 16384, 65536, 262144, 128, 512, 2048, 8192, 32768):
        if TINY and kib > 1024:
            continue
        number = max(4, min(64, (1 << 20) // kib))
        for pinned in (False, True):
            if time.time() > UNTIL:
                return
            name = f"{number} tensors of {kib} KiB, {'pinned' if pinned else 'pageable'}"
            model = Many(number, kib * 1024 // 256)
            state = {}
            block = torch.ones(number * kib * 512, dtype=torch.bfloat16, pin_memory=pinned and not TINY)
            for at in range(number):
                state[f"parts.{at}.weight"] = block[at * kib * 512 : (at + 1) * kib * 512].view(-1, 128)
            cpu_offload(model, execution_device=torch.device(DEVICE), state_dict=state)
            x, rows = torch.ones(1, 128, dtype=torch.bfloat16, device=DEVICE), []
            with torch.no_grad():
                for _ in range(7):
                    synchronize()
                    begin = clock()
                    model(x)
                    launched = clock()
                    synchronize()
                    rows.append([round((clock() - begin) / number, 9), round((launched - begin) / number, 9)])
            RECORD["tensors"].append(
                {
                    "name": name,
                    "set": half(name),
                    "kib": kib,
                    "number": number,
                    "pinned": pinned,
                    "rows": rows,
                }
            )
            middle = statistics.median(row[0] for row in rows)
            if half(name) == "fit":
                print(name, f"{1e6 * middle:.1f} us", flush=True)
            del model, state, block
        save()


for part in (tensors, prompts):
    try:
        part()
    except Exception:
        traceback.print_exc()
        RECORD.setdefault("errors", []).append([part.__name__, traceback.format_exc()[-800:]])
    save()
print("DONE", flush=True)
os._exit(0)
