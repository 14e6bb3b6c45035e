# ruff: noqa: RUF007
"""Steps and KV blocks of vLLM with recurrent, windowed or sparse layers: hybrid_steps.py CASE FILE SECONDS

Weights are random, prompts random token ids. Which results are "holdout" was written before the first run:
of Qwen3.5, two thirds of the results by the hash of their names are "fit"; all others (Nemotron-3, Gemma 4,
DeepSeek-V3.2, drafts) are "holdout", and so are all numbers of blocks but Qwen3.5's.
"""

import copy
import json
import os
import random
import statistics
import sys
import time
import traceback
import zlib
from pathlib import Path

CASE, FILE, SECONDS = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
BEGUN = time.time()
UNTIL = BEGUN + SECONDS
clock = time.perf_counter
HERE = Path(__file__).parent
RECORD = {"case": CASE, "what": __doc__.partition("\n")[0], "results": []}
SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
COMMON = {
    "load_format": "dummy",
    "dtype": "bfloat16",
    "skip_tokenizer_init": True,
    "gpu_memory_utilization": 0.9,
    "seed": 0,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
    "max_model_len": 40960,
    "cudagraph_capture_sizes": SIZES,
}
CASES = {
    "qwen": {"model": "qwen3.5-35b-a3b", "language_model_only": True, "gdn_prefill_backend": "triton"},
    "qwen-cached": {
        "model": "qwen3.5-35b-a3b",
        "language_model_only": True,
        "gdn_prefill_backend": "triton",
        "enable_prefix_caching": True,
        "cudagraph_capture_sizes": [1, 8],
    },
    "qwen-draft": {
        "model": "qwen3.5-35b-a3b",
        "language_model_only": True,
        "gdn_prefill_backend": "triton",
        "cudagraph_capture_sizes": [1, 2, 3, 4, 6, 8, 16, 24, 32, 64, 96, 128, 192, 256],
        "speculative_config": {
            "method": "mtp",
            "num_speculative_tokens": 2,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": 2.0,
        },
    },
    "nemotron": {"model": "nemotron-3-nano-30b-a3b"},
    "gemma": {"model": "gemma-4-26b-a4b"},
    "deepseek": {
        "model": "deepseek-v3.2-6-layers",
        "kv_cache_dtype": "fp8_ds_mla",
        "max_num_seqs": 128,
        "cudagraph_capture_sizes": [1, 8, 32, 128],
    },
}
OTHERS = os.environ.get("OPTIONS")


def save():
    RECORD["seconds"] = round(time.time() - BEGUN, 1)
    temporary = FILE.with_suffix(".tmp")
    temporary.write_text(json.dumps(RECORD, separators=(",", ":")))
    temporary.replace(FILE)


def half(name):
    return (
        "fit"
        if CASE.startswith("qwen") and "draft" not in CASE and zlib.crc32(name.encode()) % 3
        else "holdout"
    )


def keep(name, **facts):
    RECORD["results"].append({"name": name, "set": half(f"{CASE}, {name}"), **facts})
    save()
    print(CASE, name, {k: v for k, v in facts.items() if not isinstance(v, (list, dict))}, flush=True)


def groups(engine):
    """Return what the scheduler and the worker know of the cache: groups of layers, pages, tensors."""
    found = {}
    try:
        core = engine.engine_core.engine_core
        config = core.scheduler.kv_cache_config
        found["num_blocks"] = config.num_blocks
        found["groups"] = [
            {
                "layers": len(one.layer_names),
                "first": one.layer_names[0],
                "kind": type(one.kv_cache_spec).__name__,
                "page_bytes": one.kv_cache_spec.page_size_bytes,
                "block_size": one.kv_cache_spec.block_size,
                "spec": str(one.kv_cache_spec)[:600],
            }
            for one in config.kv_cache_groups
        ]
        found["tensors"] = [[one.size, len(one.shared_by)] for one in config.kv_cache_tensors][:80]
    except Exception as error:
        found["error"] = repr(error)[:300]
    return found


def start():
    import torch
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    RECORD["import_s"] = round(time.time() - BEGUN, 1)
    given = {**COMMON, **copy.deepcopy(CASES[CASE]), **(json.loads(OTHERS) if OTHERS else {})}
    RECORD["options"] = copy.deepcopy(given)
    given["model"] = str(HERE / "models" / given["model"])
    begin = time.time()
    engine = LLMEngine.from_engine_args(EngineArgs(**given), usage_context=UsageContext.OPENAI_API_SERVER)
    RECORD["starting_s"] = round(time.time() - begin, 1)
    config = engine.vllm_config
    import vllm

    RECORD["engine"] = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "blocks": config.cache_config.num_gpu_blocks,
        "block_size": config.cache_config.block_size,
        "mamba_block_size": getattr(config.cache_config, "mamba_block_size", None),
        "mamba_cache_mode": str(getattr(config.cache_config, "mamba_cache_mode", None)),
        "mamba_page_size_padded": getattr(config.cache_config, "mamba_page_size_padded", None),
        "mamba_ssm_cache_dtype": str(getattr(config.cache_config, "mamba_ssm_cache_dtype", None)),
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "attention": str(config.attention_config.backend),
        "async_scheduling": config.scheduler_config.async_scheduling,
        "v2_runner": getattr(config, "use_v2_model_runner", None),
        "sizes": config.compilation_config.cudagraph_capture_sizes,
        "mode": str(config.compilation_config.cudagraph_mode),
        "set": half(f"{CASE}, blocks"),
    }
    RECORD["cache"] = groups(engine)
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        RECORD["memory"] = {
            "used": total - free,
            "total": total,
            "allocated": torch.cuda.memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
        }
        try:
            model = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
            RECORD["memory"]["weights"] = getattr(model, "model_memory_usage", None)
        except Exception as error:
            RECORD["memory"]["weights_error"] = repr(error)[:200]
    save()
    print("STARTED", RECORD["starting_s"], RECORD["engine"], flush=True)
    print("CACHE", json.dumps(RECORD["cache"])[:1500], flush=True)
    numbers = [0]

    def add(tokens, output):
        numbers[0] += 1
        key = f"r{numbers[0]}"
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=output,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        engine.add_request(key, TokensPrompt(prompt_token_ids=tokens), sampling)
        return key

    return engine, add


class Driver:
    def __init__(self, engine, add):
        self.engine, self.add = engine, add
        self.random = random.Random(1)

    def tokens(self, number):
        return self.random.choices(range(100, 60000), k=number)

    def run(self, requests):
        """Carry out requests of (tokens, output); return rows of time and tokens made, and first tokens."""
        begin = clock()
        for tokens, output in requests:
            self.add(tokens, output)
        added = clock() - begin
        steps, first = [], {}
        while self.engine.has_unfinished_requests():
            found = self.engine.step()
            now = clock() - begin
            made = 0
            for one in found:
                count = len(one.outputs[0].token_ids) if one.outputs else 0
                made += count
                if count and one.request_id not in first:
                    first[one.request_id] = now
            if found:
                steps.append((now, len(found), made))
        return added, steps, sorted(first.values())


def decode(driver, sequences, context, output):
    _, steps, _ = driver.run([(driver.tokens(context), output) for _ in range(sequences)])
    full = [one for one in steps if one[1] == sequences]
    gaps = [b[0] - a[0] for a, b in zip(full[4:-3], full[5:-2], strict=True)]
    made = [one[2] for one in full[5:-2]]
    keep(
        f"decode of {sequences} sequences at {context} tokens",
        sequences=sequences,
        context=context,
        middle=context + output // 2,
        median_ms=round(1e3 * statistics.median(gaps), 4),
        mean_ms=round(1e3 * statistics.fmean(gaps), 4),
        tokens_of_a_step=round(statistics.fmean(made) / sequences, 4),
        tokens_per_s=round(sum(made) / sum(gaps), 2),
        gaps_ms=[round(1e3 * one, 3) for one in gaps],
    )


def prompt(driver, number, repetitions=3):
    times = []
    for _ in range(repetitions + 1):
        _, _, first = driver.run([(driver.tokens(number), 1)])
        times.append(first[0])
    keep(
        f"prompt of {number} tokens",
        tokens=number,
        first_ms=round(1e3 * statistics.median(times[1:]), 3),
        all_ms=[round(1e3 * one, 3) for one in times],
    )


def prompts(driver, number, requests):
    _, _, first = driver.run([(driver.tokens(number), 1) for _ in range(requests)])
    keep(
        f"{requests} prompts of {number} tokens",
        tokens=number,
        requests=requests,
        last_ms=round(1e3 * first[-1], 3),
        tokens_per_s=round(number * requests / first[-1], 1),
        firsts_ms=[round(1e3 * one, 2) for one in first],
    )


def prefix(driver, number):
    """A prompt again, with its state found in the prefix cache or not, and how many tokens were found."""
    tokens = driver.tokens(number)
    rows = []
    for _ in range(3):
        begin = clock()
        key = driver.add(tokens + driver.tokens(32), 2)
        first = None
        while driver.engine.has_unfinished_requests():
            for one in driver.engine.step():
                if one.request_id == key and first is None:
                    first = clock() - begin, one.num_cached_tokens
        rows.append([round(1e3 * first[0], 3), first[1]])
    keep(f"prefix of {number} tokens", prefix=number, rows=rows, cached=rows[-1][1], first_ms=rows[-1][0])


def kernels(driver, sequences, context):
    """Sum the time of each kernel over eight decode steps, and of a prompt of 2,048 tokens."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    def sums(found):
        rows = {}
        for one in found.events():
            if str(one.device_type).endswith("CUDA"):
                row = rows.setdefault(one.name[:90], [0, 0.0])
                row[0] += 1
                row[1] += one.device_time_total if hasattr(one, "device_time_total") else one.cuda_time_total
        return sorted(([k, v[0], round(v[1], 1)] for k, v in rows.items()), key=lambda one: -one[2])[:45]

    for _ in range(sequences):
        driver.add(driver.tokens(context), 24)
    engine = driver.engine
    while True:
        if sum(len(one.outputs[0].token_ids) > 0 for one in engine.step() if one.outputs) == sequences:
            break
    for _ in range(4):
        engine.step()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(8):
            engine.step()
        torch.cuda.synchronize()
    keep(
        f"kernels of 8 decode steps of {sequences} sequences at {context} tokens",
        sequences=sequences,
        context=context,
        kernels=sums(found),
    )
    while engine.has_unfinished_requests():
        engine.step()
    if sequences > 1:
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            driver.run([(driver.tokens(2048), 1)])
            torch.cuda.synchronize()
        keep("kernels of a prompt of 2048 tokens", tokens=2048, kernels=sums(found))


def guarded(work, *arguments):
    if time.time() > UNTIL:
        RECORD.setdefault("left_out", []).append([work.__name__, *map(str, arguments[1:])])
        return
    try:
        work(*arguments)
    except Exception:
        traceback.print_exc()
        RECORD.setdefault("errors", []).append(
            [work.__name__, str(arguments[1:]), traceback.format_exc()[-800:]]
        )
        save()


def main():
    engine, add = start()
    driver = Driver(engine, add)
    for number in (40, 600, 2100, 8000):
        driver.run([(driver.tokens(number), 8)])
    driver.run([(driver.tokens(64), 8) for _ in range(64)])
    RECORD["warm_s"] = round(time.time() - BEGUN, 1)
    save()
    most = RECORD["options"]["max_num_seqs"]
    for sequences in (1, 8, 64, most):
        guarded(decode, driver, sequences, 512, 48)
    for number in (2048, 8192, 512):
        guarded(prompt, driver, number)
    if CASE == "qwen-cached":
        for number in (4096, 2048, 1024):
            guarded(prefix, driver, number)
    guarded(decode, driver, 64, 4096, 40)
    guarded(decode, driver, 8, 16384, 40)
    guarded(kernels, driver, 64, 512)
    guarded(kernels, driver, 1, 512)
    guarded(prompts, driver, 1024, 32)
    guarded(prompt, driver, 32768, 2)
    for sequences in (2, 4, 16, 32, 128):
        guarded(decode, driver, sequences, 512, 40)
    save()
    print("DONE", CASE, RECORD["seconds"], flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
