# ruff: noqa: B007, RUF007, SIM105
"""Log vLLM's steps part by part: vllm_steps.py CASE FILE SECONDS

``load``: 1 to 128 sequences, and pieces of prompts behind decode steps, the engine in this process.
``server``: the same with the engine core in a process of its own. ``chunks16``, ``chunks256``, ``layout``:
prefixes that the OffloadingConnector has in host memory. Weights are random, prompts random token ids.
Whether a case is "fit" or "holdout" follows from the hash of its name.
"""

import json
import os
import random
import sys
import time
import traceback
import zlib
from pathlib import Path

CASE, FILE, SECONDS = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
UNTIL = time.time() + SECONDS
TINY = bool(os.environ.get("TINY"))
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if CASE == "server" else "0"
if CASE == "layout":
    os.environ["VLLM_KV_CACHE_LAYOUT"] = "NHD"


BEGUN = time.time()
clock = time.perf_counter
HERE = Path(__file__).parent
CONNECTED = CASE in ("chunks16", "chunks256", "layout")
RECORD = {"case": CASE, "what": __doc__.partition("\n")[0], "results": []}
LOG = []
"""Parts of the current step: name, begin [s], duration [s], and facts."""


def save():
    RECORD["seconds"] = round(time.time() - BEGUN, 1)
    temporary = FILE.with_suffix(".tmp")
    temporary.write_text(json.dumps(RECORD, separators=(",", ":")))
    temporary.replace(FILE)


def half(name):
    return "holdout" if zlib.crc32(name.encode()) % 3 == 0 else "fit"


def logged(owner, name, label=None, facts=None):
    """Log each call of a method: begin, duration, and what ``facts`` returns of its result and arguments."""
    method = getattr(owner, name, None)
    if method is None:
        RECORD.setdefault("missing", []).append(name)
        return

    def call(*arguments, **named):
        begin = clock()
        found = method(*arguments, **named)
        end = clock()
        LOG.append(
            [
                label or name,
                round(begin, 7),
                round(end - begin, 7),
                *(facts(found, *arguments) if facts else ()),
            ]
        )
        return found

    setattr(owner, name, call)


def options():
    model = HERE / "models" / "llama8b"
    sizes = [1, 2, 4, 8, 16, 32, 64]
    chosen = {
        "model": str(model),
        "load_format": "dummy",
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "gpu_memory_utilization": 0.9,
        "seed": 0,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 1024,
        "max_model_len": 70000 if CONNECTED else 16384,
    }
    if CONNECTED:
        extra = {"cpu_bytes_to_use": int(float(os.environ.get("CPU_GIB", "20")) * 2**30)}
        if CASE == "chunks256":
            extra["block_size"] = 256
        chosen["kv_transfer_config"] = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }
        chosen["cudagraph_capture_sizes"] = sizes
    return chosen


def start():
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    RECORD["import_s"] = round(time.time() - BEGUN, 1)
    begin = time.time()
    given = options()
    RECORD["options"] = {**given, "model": "llama-3.1-8b"}
    engine = LLMEngine.from_engine_args(EngineArgs(**given), usage_context=UsageContext.OPENAI_API_SERVER)
    RECORD["starting_s"] = round(time.time() - begin, 1)
    config = engine.vllm_config
    RECORD["engine"] = {
        "blocks": config.cache_config.num_gpu_blocks,
        "block_size": config.cache_config.block_size,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "v2_runner": getattr(config, "use_v2_model_runner", None),
        "sizes": config.compilation_config.cudagraph_capture_sizes,
        "mode": str(config.compilation_config.cudagraph_mode),
    }
    with_layout = {}
    try:
        from vllm.v1.attention.backends.utils import get_kv_cache_layout

        with_layout["layout"] = get_kv_cache_layout()
    except Exception as error:
        with_layout["layout"] = repr(error)[:100]
    RECORD["engine"] |= with_layout
    save()
    print("STARTED", RECORD["starting_s"], RECORD["engine"], flush=True)
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


def watch(engine):
    """Log the parts of a step: the scheduler, the worker, waits for the GPU, and the output."""
    core = getattr(engine.engine_core, "engine_core", None)
    logged(engine.output_processor, "process_outputs", "output")
    if core is None:
        return
    scheduler = core.scheduler

    def scheduled(found, *_):
        return found.total_num_scheduled_tokens, len(found.num_scheduled_tokens)

    logged(scheduler, "schedule", facts=scheduled)
    logged(scheduler, "update_from_output", "update")
    executor = core.model_executor
    for name in ("execute_model", "sample_tokens"):
        method = getattr(executor, name)

        def call(*arguments, method=method, name=name, **named):
            begin = clock()
            found = method(*arguments, **named)
            LOG.append([name, round(begin, 7), round(clock() - begin, 7)])
            if hasattr(found, "result") and name == "sample_tokens":
                result = found.result

                def waited(*more, **others):
                    start = clock()
                    made = result(*more, **others)
                    LOG.append(["wait", round(start, 7), round(clock() - start, 7)])
                    return made

                try:
                    found.result = waited
                except AttributeError:
                    pass
            return found

        setattr(executor, name, call)
    if CONNECTED:
        watch_connector(scheduler)


def watch_connector(scheduler):
    connector = scheduler.connector
    inner = getattr(connector, "connector_scheduler", connector)
    logged(inner, "get_num_new_matched_tokens", "c match", lambda found, *_: [str(found)[:40]])
    logged(inner, "update_state_after_alloc", "c alloc")
    logged(inner, "build_connector_meta", "c meta")
    logged(inner, "update_connector_output", "c output")
    from vllm.v1.kv_offload.cpu import gpu_worker

    handler = gpu_worker.SingleDirectionOffloadingHandler
    submit, finished = handler.transfer_async, handler.get_finished

    def transfer_async(self, *arguments, **named):
        begin = clock()
        found = submit(self, *arguments, **named)
        end = clock()
        last = self._transfers[-1]
        direction = "store" if self.gpu_to_cpu else "load"
        LOG.append(
            [f"c {direction}", round(begin, 7), round(end - begin, 7), last.num_bytes, len(last.batch_sizes)]
        )
        return found

    def get_finished(self):
        begin = clock()
        found = finished(self)
        if found:
            direction = "store" if self.gpu_to_cpu else "load"
            rows = [[one.transfer_size, round(one.transfer_time, 7)] for one in found]
            LOG.append([f"c {direction} done", round(begin, 7), round(clock() - begin, 7), rows])
        return found

    handler.transfer_async, handler.get_finished = transfer_async, get_finished


class Driver:
    def __init__(self, engine, add):
        self.engine, self.add = engine, add
        self.random = random.Random(1)
        self.steps = []
        self.first = {}
        self.begin = clock()

    def tokens(self, number):
        return self.random.choices(range(100, 120000), k=number)

    def step(self):
        """Carry out a step and keep its row: begin, end, tokens that came out, parts."""
        LOG.clear()
        begin = clock()
        found = self.engine.step()
        end = clock()
        made = 0
        for one in found:
            count = len(one.outputs[0].token_ids) if one.outputs else 0
            made += count
            if count and one.request_id not in self.first:
                self.first[one.request_id] = end, one.num_cached_tokens
        parts = [[one[0], round(1e6 * (one[1] - begin), 1), round(1e6 * one[2], 1), *one[3:]] for one in LOG]
        self.steps.append([round(begin - self.begin, 7), round(end - begin, 7), made, parts])

    def drain(self):
        while self.engine.has_unfinished_requests():
            self.step()

    def fresh(self):
        self.steps = []
        self.begin = clock()

    def poke(self, output=12):
        self.add(self.tokens(40), output)
        self.drain()


def decode(driver, sequences, context=256, output=48):
    name = f"decode of {sequences} sequences"
    for repetition in range(2):
        driver.fresh()
        for _ in range(sequences):
            driver.add(driver.tokens(context), output)
        driver.drain()
    full = [row for row in driver.steps if row[2] == sequences]
    gaps = [b[0] + b[1] - a[0] - a[1] for a, b in zip(full[4:-3], full[5:-2], strict=True)]
    RECORD["results"].append(
        {"name": name, "set": half(name), "sequences": sequences, "context": context, "steps": driver.steps}
    )
    save()
    gaps.sort()
    print(name, f"median {1e3 * gaps[len(gaps) // 2]:.3f} ms" if gaps else "", flush=True)


def pieces(driver, sequences, sizes=(128, 256, 512, 1024, 2048)):
    """Add prompts of each size one after the other while ``sequences`` others decode."""
    driver.fresh()
    per = 8
    # each prompt makes two tokens, so that it leaves soon
    for _ in range(sequences):
        driver.add(driver.tokens(256), 40 + per * 3 * len(sizes) + 20)
    for _ in range(24):
        driver.step()
    added = []
    for _ in range(3):
        for size in sizes:
            tokens = driver.tokens(size)
            key = driver.add(tokens, 2)
            added.append([len(driver.steps), size, key])
            for _ in range(per):
                driver.step()
    driver.drain()
    name = f"prompts behind decode steps of {sequences} sequences"
    sets = {size: half(f"{name}, {size} tokens") for size in sizes}
    rows = [
        [at, size, sets[size], driver.first.get(key, (0, 0))[0] - driver.begin] for at, size, key in added
    ]
    RECORD["results"].append(
        {"name": name, "sequences": sequences, "sets": sets, "added": rows, "steps": driver.steps}
    )
    save()
    print(name, len(driver.steps), "steps", flush=True)


def hits(driver, number, repetitions=3):
    """Time a prompt that is computed, found in GPU memory, and found in host memory, after the first."""
    name = f"prefix of {number} tokens"
    result = {"name": name, "set": half(name), "prefix": number, "rows": []}
    for _ in range(repetitions):
        prefix = driver.tokens(number)
        for kind in ("computed", "local", "stored", "stored again"):
            if kind.startswith("stored"):
                result.setdefault("reset", []).append(bool(driver.engine.reset_prefix_cache()))
            driver.fresh()
            begin = clock()
            key = driver.add(prefix + driver.tokens(32), 4)
            adding = clock() - begin
            driver.drain()
            first, cached = driver.first[key]
            row = {
                "kind": kind,
                "first": round(first - begin, 7),
                "cached": cached,
                "adding": round(adding, 7),
            }
            if kind != "computed" or number <= 8192:
                row["steps"] = driver.steps[:40]
            result["rows"].append(row)
            driver.poke()
            time.sleep(0.15)
            driver.poke()
        if time.time() > UNTIL:
            break
    RECORD["results"].append(result)
    save()
    print(
        name,
        [(one["kind"], round(1e3 * one["first"], 2), one["cached"]) for one in result["rows"]],
        flush=True,
    )


def hits_together(driver, number, requests):
    """Time several prompts with different stored prefixes that arrive at once."""
    name = f"{requests} prefixes of {number} tokens at once"
    result = {"name": name, "set": half(name), "prefix": number, "requests": requests, "rows": []}
    for _ in range(2):
        prefixes = [driver.tokens(number) for _ in range(requests)]
        for kind in ("computed", "stored"):
            if kind == "stored":
                driver.engine.reset_prefix_cache()
            driver.fresh()
            begin = clock()
            keys = [driver.add(one + driver.tokens(32), 4) for one in prefixes]
            driver.drain()
            firsts = [[round(driver.first[key][0] - begin, 7), driver.first[key][1]] for key in keys]
            result["rows"].append(
                {"kind": kind, "firsts": firsts, "steps": driver.steps[:60] if kind == "stored" else []}
            )
            driver.poke()
            time.sleep(0.2)
            driver.poke()
    RECORD["results"].append(result)
    save()
    print(name, [(one["kind"], one["firsts"][-1]) for one in result["rows"]], flush=True)


def hit_behind_decode(driver, number, sequences):
    """Time a stored prefix that arrives while other sequences decode."""
    name = f"prefix of {number} tokens behind decode steps of {sequences} sequences"
    result = {"name": name, "set": half(name), "prefix": number, "sequences": sequences, "rows": []}
    for _ in range(2):
        prefix = driver.tokens(number)
        driver.add(prefix + driver.tokens(32), 2)
        driver.drain()
        driver.poke()
        time.sleep(0.2)
        driver.poke()
        driver.engine.reset_prefix_cache()
        driver.fresh()
        for _ in range(sequences):
            driver.add(driver.tokens(256), 80)
        for _ in range(20):
            driver.step()
        at, begin = len(driver.steps), clock()
        key = driver.add(prefix + driver.tokens(32), 4)
        driver.drain()
        first, cached = driver.first[key]
        result["rows"].append(
            {
                "at": at,
                "first": round(first - begin, 7),
                "cached": cached,
                "steps": driver.steps[at - 6 : at + 40],
            }
        )
    RECORD["results"].append(result)
    save()
    print(name, [(round(1e3 * one["first"], 2), one["cached"]) for one in result["rows"]], flush=True)


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
    watch(engine)
    driver = Driver(engine, add)
    for number in (40, 600, 2100, 8000):
        driver.add(driver.tokens(number), 8)
        driver.drain()
    for _ in range(64):
        driver.add(driver.tokens(64), 8)
    driver.drain()
    RECORD["warm_s"] = round(time.time() - BEGUN, 1)
    if CONNECTED:
        sizes = (1024, 4096, 16384, 2048, 65536, 8192, 32768)
        for number in sizes:
            guarded(hits, driver, number, 3 if number < 30000 else 2)
        for number, requests in ((4096, 4), (2048, 8), (8192, 2)):
            guarded(hits_together, driver, number, requests)
        for number, sequences in ((4096, 16), (16384, 16), (8192, 64)):
            guarded(hit_behind_decode, driver, number, sequences)
    else:
        for sequences in (1, 8, 32, 64, 96, 128, 16, 48, 80, 112):
            guarded(decode, driver, sequences)
        for sequences in (8, 32, 64, 1, 96):
            guarded(pieces, driver, sequences)
        for sequences in (64, 128):
            guarded(decode, driver, sequences, 1024, 40)
    save()
    print("DONE", CASE, RECORD["seconds"], flush=True)
    if CASE == "server":
        engine.engine_core.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
