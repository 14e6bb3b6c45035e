"""Record vLLM under streams of requests: steps, requests, blocks, hits and loads of the offloading connector.

``python vllm_streams.py SECONDS OUT ENGINE...`` runs engines one after the other, each in a process of its
own, and writes OUT/ENGINE.json. Weights are random ("dummy"), prompts are random token ids, outputs have a
fixed length (``ignore_eos``). ``set`` of a result is "fit" or "holdout", by the hash of its name, which was
written before the first run; engines with "hold" are held out as a whole.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "mlp_bias": False,
}
QWEN3_14B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 40,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
QWEN3_30B = {
    **{k: v for k, v in QWEN3_14B.items() if k != "intermediate_size"},
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_hidden_layers": 48,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
BASE = {
    "load_format": "dummy",
    "dtype": "bfloat16",
    "skip_tokenizer_init": True,
    "gpu_memory_utilization": 0.9,
    "seed": 0,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 1024,
    "max_model_len": 20480,
}
FEW = {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256]}
ENGINES = {
    "llama-8b": {"model": LLAMA},
    "llama-8b-scarce": {"model": LLAMA, "num_gpu_blocks_override": 2500, **FEW},
    "llama-8b-more": {"model": LLAMA, "hold": True},
    "qwen3-30b": {"model": QWEN3_30B},
    "qwen3-14b": {"model": QWEN3_14B, "hold": True},
    "llama-8b-host": {"model": LLAMA, "cpu_offload_gb": 6, **FEW},
    "llama-8b-store": {"model": LLAMA, "kv_offloading_size": 32, "kv_offloading_backend": "native", **FEW},
}


def set_of(name: str) -> str:
    """Return "fit" or "holdout" by the hash of a result's name."""
    return "fit" if hashlib.sha256(name.encode()).digest()[0] < 0x60 else "holdout"


def poisson(rate, count, prompt, output, seed):
    """Return requests (arrival [s], tokens of prompt, of output, 0) with uniform lengths."""
    draw, now, found = random.Random(seed), 0.0, []
    for _ in range(count):
        now += draw.expovariate(rate)
        found.append((now, draw.randint(*prompt), draw.randint(*output), 0))
    return found


def lognormal(rate, count, cv, seed):
    """Return requests with lengths about those of chats, and gamma gaps of a coefficient of variation."""
    draw, now, found, shape = random.Random(seed), 0.0, [], 1 / cv**2
    for _ in range(count):
        now += draw.gammavariate(shape, 1 / (rate * shape))
        prompt = min(8000, max(16, int(draw.lognormvariate(6.2, 1.0))))
        found.append((now, prompt, min(1000, max(8, int(draw.lognormvariate(5.0, 0.8)))), 0))
    return found


def shared(rate, count, seed):
    """Return requests that begin with one of four common texts of 2,048 tokens."""
    draw = random.Random(seed + 1)
    return [(t, p, o, draw.randint(1, 4)) for t, p, o, _ in poisson(rate, count, (100, 600), (50, 150), seed)]


STREAMS = {
    "llama-8b": [
        ("uniform 8/s", poisson(8, 160, (500, 1500), (100, 300), 1)),
        ("uniform 16/s", poisson(16, 240, (500, 1500), (100, 300), 2)),
        ("uniform 22/s", poisson(22, 300, (500, 1500), (100, 300), 3)),
        ("uniform 28/s", poisson(28, 300, (500, 1500), (100, 300), 4)),
    ],
    "llama-8b-more": [
        ("chats 20/s", lognormal(20, 300, 1.0, 6)),
        ("bursts 20/s", lognormal(20, 300, 3.0, 7)),
        ("common 20/s", shared(20, 200, 8)),
        ("uniform 40/s", poisson(40, 300, (500, 1500), (100, 300), 5)),
    ],
    "llama-8b-scarce": [
        ("scarce 6/s", poisson(6, 120, (500, 1500), (200, 600), 11)),
        ("scarce 12/s", poisson(12, 160, (500, 1500), (200, 600), 12)),
        ("scarce chats 12/s", lognormal(12, 160, 1.0, 13)),
    ],
    "qwen3-30b": [
        ("uniform 6/s", poisson(6, 120, (500, 1500), (100, 300), 21)),
        ("uniform 12/s", poisson(12, 200, (500, 1500), (100, 300), 22)),
        ("uniform 18/s", poisson(18, 240, (500, 1500), (100, 300), 23)),
    ],
    "qwen3-14b": [
        ("uniform 5/s", poisson(5, 100, (500, 1500), (100, 300), 31)),
        ("uniform 10/s", poisson(10, 160, (500, 1500), (100, 300), 32)),
        ("uniform 15/s", poisson(15, 200, (500, 1500), (100, 300), 33)),
        ("uniform 20/s", poisson(20, 200, (500, 1500), (100, 300), 34)),
    ],
    "llama-8b-host": [
        ("host 1/s", poisson(1, 16, (200, 600), (20, 60), 41)),
        ("host 4/s", poisson(4, 48, (200, 600), (20, 60), 42)),
    ],
    "llama-8b-store": [],
}


def main(name: str, out: Path, seconds: float) -> None:
    """Run one engine and write its results after each case."""
    begin = time.time()
    import torch
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    options = {**BASE, **ENGINES[name]}
    hold = options.pop("hold", False)
    folder = out / f".{name}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(options["model"]))
    options["model"] = str(folder)
    results: dict = {"engine": name, "options": {**options, "model": ENGINES[name]["model"]}, "results": []}

    def save() -> None:
        (out / f"{name}.json.new").write_text(json.dumps(results, separators=(",", ":")))
        (out / f"{name}.json.new").replace(out / f"{name}.json")

    import_s = time.time() - begin
    engine = LLMEngine.from_engine_args(EngineArgs(**options), usage_context=UsageContext.OPENAI_API_SERVER)
    config, free = engine.vllm_config, torch.cuda.mem_get_info()
    results["facts"] = {
        "import_s": import_s,
        "start_s": time.time() - begin - import_s,
        "blocks": config.cache_config.num_gpu_blocks,
        "block_size": config.cache_config.block_size,
        "tokens_per_step": config.scheduler_config.max_num_batched_tokens,
        "async": config.scheduler_config.async_scheduling,
        "capture": config.compilation_config.cudagraph_capture_sizes,
        "memory_used": free[1] - free[0],
        "memory_total": free[1],
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "gpu": torch.cuda.get_device_name(),
    }
    save()
    print("STARTED", json.dumps(results["facts"]), flush=True)
    scheduler = engine.engine_core.engine_core.scheduler
    schedule, log, clock = scheduler.schedule, [], time.perf_counter

    def logged(*given, **named):
        found = schedule(*given, **named)
        if found.total_num_scheduled_tokens:
            preempted = getattr(found, "preempted_req_ids", None) or ()
            log.append(
                (
                    clock(),
                    found.total_num_scheduled_tokens,
                    len(found.num_scheduled_tokens),
                    len(scheduler.running),
                    len(scheduler.waiting),
                    len(preempted),
                )
            )
        return found

    scheduler.schedule = logged
    draw, high, number = random.Random(1), config.model_config.get_vocab_size() - 1000, [0]
    common = {i: [draw.randrange(100, high) for _ in range(2048)] for i in range(1, 5)}

    def tokens(count: int) -> list[int]:
        return [draw.randrange(100, high) for _ in range(count)]

    def add(ids, output) -> str:
        number[0] += 1
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=output,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        engine.add_request(f"r{number[0]}", TokensPrompt(prompt_token_ids=ids), sampling)
        return f"r{number[0]}"

    def serve(requests, prompts):
        """Return for each request: arrival, prompt, output, common text, added, first, last, cached."""
        rows, index, done, start = {}, 0, 0, clock()
        log.clear()
        while done < len(requests):
            now = clock() - start
            while index < len(requests) and requests[index][0] <= now:
                arrival, _, output, group = requests[index]
                key = add(prompts[index], output)
                rows[key] = [
                    round(arrival, 6),
                    len(prompts[index]),
                    output,
                    group,
                    round(clock() - start, 6),
                    None,
                    None,
                    None,
                ]
                index += 1
            if not engine.has_unfinished_requests():
                if index == len(requests):
                    break
                time.sleep(max(0.0, min(0.002, requests[index][0] - (clock() - start))))
                continue
            found = engine.step()
            now = round(clock() - start, 6)
            for one in found:
                row = rows.get(one.request_id)
                if row is None:
                    continue
                if one.outputs and one.outputs[0].token_ids:
                    if row[5] is None:
                        row[5], row[7] = now, one.num_cached_tokens
                    row[6] = now
                done += bool(one.finished)
        return list(rows.values()), [(round(t - start, 6), *rest) for t, *rest in log]

    def record(case: str, found: dict) -> None:
        title = f"{name} {case}"
        results["results"].append({"case": case, "set": "holdout" if hold else set_of(title), **found})
        save()
        print(
            "CASE",
            title,
            json.dumps({k: v for k, v in found.items() if k not in ("rows", "steps")}),
            flush=True,
        )

    def together(count, prompt, output, case=None):
        rows, steps = serve([(0.0, prompt, output, 0)] * count, [tokens(prompt) for _ in range(count)])
        if case:
            gaps = [b[0] - a[0] for a, b in itertools.pairwise(steps) if a[1] == count and b[1] == count]
            gaps = sorted(gaps[3:-2])
            record(
                case,
                {
                    "count": count,
                    "prompt": prompt,
                    "output": output,
                    "median_s": gaps[len(gaps) // 2],
                    "low_s": gaps[0],
                    "p90_s": gaps[int(0.9 * len(gaps))],
                    "first_s": [r[5] for r in rows][:8],
                },
            )

    def left() -> float:
        return seconds - (time.time() - begin)

    for prompt in (40, 600, 2100, 8000):
        together(1, prompt, 8)
    together(64, 64, 16)
    if name == "llama-8b-store":
        for prompt in (1024, 4096, 8192, 16384):
            cold, stored, local = [], [], []
            for _ in range(3):
                ids = tokens(prompt)
                for to in (cold, stored, local):
                    if to is stored:
                        time.sleep(0.3)
                        together(1, 40, 8)
                        engine.reset_prefix_cache()
                    rows, _ = serve([(0.0, 0, 4, 0)], [ids + tokens(32)])
                    to.append((rows[0][5], rows[0][7]))
                    together(1, 40, 24)
            record(f"load {prompt}", {"cold": cold, "stored": stored, "local": local})
    elif name == "llama-8b-host":
        for count in (1, 8, 32):
            together(count, 256, 14, f"decode {count} x 256")
    else:
        for count, prompt, output in (
            (1, 512, 40),
            (16, 512, 40),
            (64, 512, 40),
            (64, 2048, 30),
            (200, 512, 30),
        ):
            if count * (prompt + output) < results["facts"]["blocks"] * 16:
                together(count, prompt, output, f"decode {count} x {prompt}")
    for case, requests in STREAMS[name]:
        if left() < 1.4 * requests[-1][0] + 8:
            print("SKIPPED", case, flush=True)
            continue
        engine.reset_prefix_cache()
        prompts = [common.get(group, []) + tokens(count) for _, count, _, group in requests]
        rows, steps = serve(requests, prompts)
        first = sorted(r[5] - r[0] for r in rows)
        each = sorted((r[6] - r[5]) / max(1, r[2] - 1) for r in rows)
        record(
            case,
            {
                "requests": len(rows),
                "ends_s": max(r[6] for r in rows),
                "ttft_mean": sum(first) / len(first),
                "ttft_p99": first[int(0.99 * len(first))],
                "tpot_mean": sum(each) / len(each),
                "preempted": sum(s[5] for s in steps),
                "rows": rows,
                "steps": steps,
            },
        )
    results["total_s"] = time.time() - begin
    save()
    print("DONE", name, results["total_s"], flush=True)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        main(sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))
    limit, target, started = float(sys.argv[1]), Path(sys.argv[2]), time.time()
    for pair in sys.argv[3:]:
        engine_name, _, share = pair.partition(":")
        rest = min(float(share or 1e9), limit - (time.time() - started))
        if rest < 60:
            print("NO TIME", engine_name, flush=True)
            continue
        variables = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        if engine_name.endswith("host"):
            variables["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the other one ignores cpu_offload_gb
        print("==", engine_name, round(time.time() - started), flush=True)
        command = [sys.executable, __file__, "--engine", engine_name, str(target), str(rest - 10)]
        with (target / f"{engine_name}.log").open("w") as file:
            child = subprocess.Popen(command, env=variables, stdout=file, stderr=subprocess.STDOUT)
            try:
                child.wait(rest)
            except subprocess.TimeoutExpired:
                child.kill()
        lines = (target / f"{engine_name}.log").read_text(errors="replace").splitlines()
        wanted = [line[:300] for line in lines if line.startswith(("STARTED", "CASE", "SKIPPED", "DONE"))]
        worked = any("CASE" in line for line in wanted)
        print("\n".join(wanted if worked else lines[-40:]), flush=True)
        if not worked:
            break
