"""This module replays random loads beside the scheduler of vLLM, on the CPU, and compares every step.

    python -m validation.vllm_scheduler 600
    python -m validation.vllm_scheduler --seed 7 200
    python -m validation.vllm_scheduler --write

The package vllm must be of the pinned version; its scheduler, its cache of prefixes and its pool of blocks
are Python alone and need no GPU (``pip install --no-deps vllm==0.33.0`` beside torch for CPUs and what they
import). Requests and times of steps are equal on both sides. A load is equal if all steps have the same
chunks in the same order, sequences, contexts and begins, without sliding groups also the same free blocks,
and if all requests have the same first and last tokens, also where we jump over steps, hits and
preemptions. ``--write`` writes the logs of vLLM for few small loads, which a test replays
(``tests/serving/vllm-logs.json.xz``).
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from simoffload.extensions.serving.prefixes import RadixCache
from simoffload.extensions.serving.replica import Replica, StepTime, serve
from simoffload.extensions.serving.scheduler import ReplicaState, Runs, ScheduledWork, VllmScheduler
from simoffload.strategies import CacheGroups

PINNED = "0.33.0"
"""Version of vLLM whose scheduler ours equals."""
LOGS = Path(__file__).parents[1] / "tests" / "serving" / "vllm-logs.json.xz"
GROUPS = (1, 0, 1), (1, 1, 128), (1, 5, 1024), (1, 6, 512), (2, 1, 256), (0, 1, 256)
"""Numbers of groups of layers with full attention and with a window, and its tokens: those of a plain model,
gpt-oss, two of Gemma 3, one with two full groups, and one with windows alone."""
KINDS = "plain", "scarce", "shared", "turns", "burst", "one token", "found in full", "long", "no cache"
_FIXED, _TOKEN, _CONTEXT, _ATTENTION = 0.012, 6e-5, 1.4e-7, 2.4e-10
"""Time of a step, and of each of its tokens, contexts and pairs of tokens [s] (our choice)."""


class Load(NamedTuple):
    """A Load is requests, and the limits of the engine that serves them."""

    kind: str
    groups: tuple[int, int, int]
    ahead: bool
    """Whether steps are scheduled asynchronously."""
    blocks: int
    """Number of blocks without the null block of vLLM."""
    size: int
    tokens: int
    sequences: int
    arrival: list[float]
    prompt: list[int]
    output: list[int]
    after: list[int]
    """The request after whose end one arrives; -1: none."""
    runs: list[Runs]


class Log(NamedTuple):
    """A Log is what a scheduler did with a load."""

    steps: list[tuple[list[list[int]], int, int, int, float]]
    """Chunks (request, tokens), sequences, contexts and free blocks of each step, and its begin [s]."""
    first: list[float]
    last: list[float]
    cached: list[int]
    preemptions: int


def drawn(kind: str, groups: tuple[int, int, int], draw: np.random.Generator, *, most: int = 150) -> Load:
    """Return a random load of a kind with at most so many requests."""
    number = int(draw.integers(most // 2, most + 1)) // (3 if kind == "long" else 1)
    rate = 0.5 if kind == "burst" else float(draw.uniform(3, 14)) / (4 if kind in ("turns", "long") else 1)
    each = int(draw.choice((10, 25, 50))) if kind == "burst" else 1
    arrival = np.repeat(draw.exponential(1 / rate, -(-number // each)).cumsum(), each)[:number]
    low, high = (100, 20_000) if kind == "long" else (1, int(draw.integers(100, 1200)))
    if kind in ("shared", "turns"):
        high = 300
    own = np.exp(draw.uniform(np.log(low), np.log(high + 1), number)).astype(int)
    output = draw.integers(
        1, 1 if kind == "one token" else int(draw.integers(20, 300)), number, endpoint=True
    )
    common: list[list[tuple[int, int]]] = []
    if kind in ("shared", "found in full") or (
        kind in ("turns", "burst", "one token") and draw.random() < 0.6
    ):
        for place, texts in enumerate(draw.choice((1, 2, 8), int(draw.integers(1, 3)))):
            lengths = draw.integers(10, 800 if kind == "shared" else 320, texts)
            common.append([(100 * place + text + 1, int(one)) for text, one in enumerate(lengths)])
    after, runs = [-1] * number, list[Runs]()
    for row in range(number):
        text = tuple(one[int(draw.integers(len(one)))] for one in common)
        if kind == "turns" and row and draw.random() < 0.7:
            after[row], arrival[row] = row - 1, float(draw.exponential(1.0))
            text = (*(runs[-1] or ()), (-row, int(output[row - 1])))
        if not text or kind != "found in full" or draw.random() < 0.4:
            text = (*text, (10**6 + row, int(own[row])))
        runs.append(text if common or kind == "turns" else None)
    begins = np.array(after) == -1
    arrival[begins] = np.sort(arrival[begins])
    prompt = [sum(tokens for _, tokens in one) if one else int(own[row]) for row, one in enumerate(runs)]
    size = int(draw.choice((16, 16, 16, 32, 8) if groups[1] else (16, 16, 16, 1, 8, 64)))
    full, sliding, _ = groups
    mean = (full + sliding) * float(np.mean(prompt)) / size
    blocks = (
        100_000 if kind == "plain" and draw.random() < 0.5 else int(mean * np.exp(draw.uniform(0.4, 3.7)))
    )
    longest = max(p + o for p, o in zip(prompt, output.tolist(), strict=True))
    return Load(
        kind,
        groups,
        bool(draw.random() < 0.5),
        max(blocks, (full + sliding) * (-(-longest // size) + 2)),
        size,
        int(draw.choice((256, 512, 2048, 8192))),
        int(draw.choice((8, 16, 64, 256))),
        arrival.tolist(),
        prompt,
        output.tolist(),
        after,
        runs,
    )


def _time(tokens: int, contexts: int, attention: float) -> float:
    return _FIXED + _TOKEN * tokens + _CONTEXT * contexts + _ATTENTION * attention


class _Watched:
    """Times of steps that note the steps, with the state after they were scheduled."""

    def __init__(self) -> None:
        self.steps: list[tuple[list[list[int]], int, int, int]] = []

    def of(self, work: ScheduledWork, state: ReplicaState) -> StepTime:
        """Return the time of a step."""
        time = _time(work.tokens + work.sequences, work.contexts, work.attention)
        chunks = [list(one) for one in work.chunks]
        self.steps.append((chunks, work.sequences, work.contexts, state.free - state.growth))
        growth = 0.0 if work.chunks else _CONTEXT * work.sequences
        return StepTime(time, growth=growth, steps=work.steps)


def simulated(load: Load, *, jump: bool = False) -> Log:
    """Return what our scheduler does, step by step or in jumps; these note their first step alone."""
    full, sliding, window = load.groups
    times, cached = _Watched(), load.kind != "no cache"
    replica = Replica(
        scheduler=VllmScheduler(max_num_batched_tokens=load.tokens, max_num_seqs=load.sequences),
        state=ReplicaState(
            blocks=load.blocks,
            block_size=load.size,
            groups=CacheGroups(full, sliding, window, load.tokens),
            cache=RadixCache(load.size) if cached else None,
        ),
        times=times,
        async_scheduling=load.ahead,
        jump=jump,
    )
    requests = SimpleNamespace(
        arrival=np.array(load.arrival),
        prompt=np.array(load.prompt),
        output=np.array(load.output),
        runs=load.runs,
    )
    after = np.array(load.after)
    served = serve(replica, requests, after=after if (after >= 0).any() else None)
    log = served.log
    begins = log.begin[(log.tokens > 0) | (log.contexts > 0)].tolist()
    steps = [(*step, float(begin)) for step, begin in zip(times.steps, begins, strict=True)]
    first, last = served.first.tolist(), served.finished.tolist()
    return Log(steps, first, last, served.cached.tolist(), int(served.preemptions.sum()))


def difference(load: Load, theirs: Log, ours: Log, jumped: Log) -> str | None:
    """Return where two logs differ first; None if they are equal."""
    free = 3 if load.groups[1] else 4
    for number, (a, b) in enumerate(zip(theirs.steps, ours.steps, strict=False)):
        if list(a[:free]) != list(b[:free]) or abs(a[4] - b[4]) > 1e-6:
            return f"step {number}: vLLM {a}, ours {b}"
    if len(theirs.steps) != len(ours.steps):
        return f"{len(theirs.steps)} and {len(ours.steps)} steps"
    if theirs.cached != ours.cached:
        return "tokens that are found"
    if theirs.preemptions != ours.preemptions:
        return f"{theirs.preemptions} and {ours.preemptions} preemptions"
    for name, one in (("step by step", ours), ("with jumps", jumped)):
        for what, right, found in (("first", theirs.first, one.first), ("last", theirs.last, one.last)):
            if not np.allclose(right, found, rtol=0, atol=1e-6):
                return f"times of the {what} tokens {name}"
    return None


# -- vLLM ---------------------------------------------------------------------------------------------


def refusal() -> str | None:
    """Return why vLLM's scheduler cannot be run here."""
    try:
        found = version("vllm")
    except PackageNotFoundError:
        return f"vllm {PINNED} is not installed: pip install --no-deps vllm=={PINNED}, in a Python with torch"
    if found != PINNED:
        return f"vllm {found} is installed, and the comparison is with {PINNED}: pip install vllm=={PINNED}"
    return None


def _settings(load: Load) -> SimpleNamespace:
    """Return the settings that vLLM's scheduler looks at, without those of its own class."""
    longest = max(p + o for p, o in zip(load.prompt, load.output, strict=True)) + 1
    batches = 1 + load.ahead
    absent = ("lora", "kv_events", "kv_transfer", "ec_transfer", "speculative")
    return SimpleNamespace(
        **{f"{name}_config": None for name in absent},
        cache_config=SimpleNamespace(
            num_gpu_blocks=load.blocks + 1,
            enable_prefix_caching=load.kind != "no cache",
            block_size=load.size,
            mamba_cache_mode="none",
            enable_mamba_shared_prefix_checkpoint=False,
        ),
        model_config=SimpleNamespace(
            max_model_len=longest,
            runner_type="generate",
            **dict.fromkeys(("uses_mrope", "is_encoder_decoder", "is_diffusion"), False),
            **dict.fromkeys(("supports_multimodal_inputs", "return_sampling_mask"), False),
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            **{f"{name}_parallel_size": 1 for name in ("pipeline", "data")},
            **{f"{name}_context_parallel_size": 1 for name in ("decode", "prefill")},
        ),
        observability_config=SimpleNamespace(
            per_request_spec_decode_metrics=None,
            kv_cache_metrics=False,
            enable_mfu_metrics=False,
            enable_logging_iteration_details=False,
        ),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        is_mm_encoder_only=False,
        use_v2_model_runner=False,
        max_in_flight_tokens=batches * load.tokens,
        max_concurrent_batches=batches,
        **{
            f"num_{name}_tokens": 0
            for name in ("speculative", "lookahead", "prefill_lookahead", "hash_lookahead")
        },
    )


def _scheduler(load: Load) -> Any:
    """Return vLLM's scheduler."""
    import torch
    from vllm.config.scheduler import SchedulerConfig
    from vllm.v1 import kv_cache_interface as cache
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    full, sliding, window = load.groups
    layer = {"block_size": load.size, "num_kv_heads": 1, "head_size": 16, "dtype": torch.float16}
    specs = [cache.FullAttentionSpec(**layer)] * full
    specs += [cache.SlidingWindowSpec(**layer, sliding_window=window)] * sliding
    groups = [cache.KVCacheGroupSpec([f"layer {row}"], spec) for row, spec in enumerate(specs)]
    config = _settings(load)
    config.scheduler_config = SchedulerConfig(
        max_model_len=config.model_config.max_model_len,
        is_encoder_decoder=False,
        max_num_batched_tokens=load.tokens,
        max_num_seqs=load.sequences,
        async_scheduling=load.ahead,
    )
    return (AsyncScheduler if load.ahead else Scheduler)(
        vllm_config=config,
        kv_cache_config=cache.KVCacheConfig(load.blocks + 1, [], groups),
        block_size=load.size,
        hash_block_size=load.size,
        structured_output_manager=SimpleNamespace(
            accept_tokens=lambda *_: True, should_advance=lambda _: False
        ),
    )


def _token(key: int, position: int) -> int:
    return (2 * abs(key) + (key < 0) << 24) + position


class _Engine:
    """vLLM's scheduler, and a GPU that takes the times of our steps."""

    def __init__(self, load: Load) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core import kv_cache_utils

        kv_cache_utils.init_none_hash(sha256)
        self._load, self._scheduler = load, _scheduler(load)
        cached = load.kind != "no cache"
        self._hashes = kv_cache_utils.get_request_block_hasher(load.size, sha256) if cached else None
        number = len(load.prompt)
        self.log = Log([], [inf] * number, [inf] * number, [0] * number, 0)
        self._goal: dict[str, int] = {}
        """Tokens up to which a request has chunks, since it was admitted."""
        self._admitted: set[int] = set()
        self._done = self._preempted = 0

    def run(self) -> Log:
        """Serve all requests."""
        load, scheduler = self._load, self._scheduler
        due = [(at, row) for row, at in enumerate(load.arrival) if load.after[row] < 0]
        heapify(due)
        next_of = {before: row for row, before in enumerate(load.after) if before >= 0}
        flying: deque[tuple[float, Any, dict[str, int]]] = deque()
        now = gpu = 0.0
        while self._done < len(load.prompt):
            while due and due[0][0] <= now:
                self._add(*heappop(due))
            if scheduler.has_requests():
                output = scheduler.schedule()
                self._preempted += len(output.preempted_req_ids)
                sampled: dict[str, int] = {}
                end = now
                if output.total_num_scheduled_tokens:
                    begin = max(now, gpu)
                    gpu = end = begin + self._step(output, begin, sampled)
                flying.append((end, output, sampled))
                if len(flying) <= load.ahead and (end > now or scheduler.has_requests()):
                    continue
            elif not flying:
                now = due[0][0]
                continue
            end, output, sampled = flying.popleft()
            now = max(now, end)
            for row in self._update(output, sampled, now):
                if row in next_of:
                    heappush(due, (now + load.arrival[next_of[row]], next_of[row]))
        return self.log._replace(preemptions=self._preempted)

    def _add(self, at: float, row: int) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        tokens: list[int] = []
        for key, number in self._load.runs[row] or ((2 * 10**6 + row, self._load.prompt[row]),):
            tokens += [_token(key, len(tokens) + place) for place in range(number)]
        limits = SamplingParams(max_tokens=self._load.output[row], ignore_eos=True)
        request = Request(str(row), tokens, limits, None, arrival_time=at, block_hasher=self._hashes)
        self._scheduler.add_request(request)

    def _step(self, output: Any, begin: float, sampled: dict[str, int]) -> float:
        """Note a step and what it samples, and return its time."""
        chunks, sequences, contexts, tokens, attention = list[list[int]](), 0, 0, 0, 0.0
        fresh = {one.req_id for one in output.scheduled_new_reqs}
        fresh |= set(output.scheduled_cached_reqs.resumed_req_ids)
        for name, new in output.num_scheduled_tokens.items():
            request, row = self._scheduler.requests[name], int(name)
            past = request.num_computed_tokens - new
            if name in fresh:
                self._goal[name] = request.num_tokens
                if row not in self._admitted:
                    self._admitted.add(row)
                    self.log.cached[row] = past
            tokens += new
            if past < self._goal[name]:
                chunks.append([row, new])
                attention += new * (past + new / 2)
            else:
                sequences += 1
                contexts += past + 1
            if not request.is_prefill_chunk:
                sampled[name] = past + new
        free = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self.log.steps.append((chunks, sequences, contexts, free, begin))
        return _time(tokens, contexts, attention)

    def _update(self, output: Any, sampled: dict[str, int], now: float) -> Iterator[int]:
        """Give the scheduler the tokens of a step, and yield the requests that end with it."""
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[
                [_token(-1 - int(one), sampled[one])] if one in sampled else [] for one in names
            ],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        for several in self._scheduler.update_from_output(output, result).values():
            for one in several.outputs:
                row = int(one.request_id)
                if one.new_token_ids:
                    self.log.first[row] = min(self.log.first[row], now)
                if one.finish_reason is not None:
                    self.log.last[row] = now
                    self._done += 1
                    yield row


# -- both ---------------------------------------------------------------------------------------------


def read_logs() -> list[tuple[Load, Log]]:
    """Return the loads that were written, and what vLLM did with them."""
    found = []
    for load, log in json.loads(lzma.decompress(LOGS.read_bytes())):
        one = Load(*load)
        runs = [None if text is None else tuple((key, tokens) for key, tokens in text) for text in one.runs]
        full, sliding, window = one.groups
        found.append((one._replace(runs=runs, groups=(full, sliding, window)), Log(*log)))
    return found


def _write() -> None:
    draw = np.random.default_rng(33)
    loads = [drawn(kind, GROUPS[0], draw, most=40) for kind in KINDS]
    loads += [
        drawn(kind, one, draw, most=30) for one in GROUPS[1:] for kind in ("scarce", "shared", "turns")[:2]
    ]
    loads += [drawn("turns", one, draw, most=30) for one in GROUPS[1:3]]
    rows = []
    for load in loads:
        log = _Engine(load).run()
        steps = [(*step[:-1], round(step[-1], 9)) for step in log.steps]
        times = ([round(one, 9) for one in times] for times in (log.first, log.last))
        rows.append((load, (steps, *times, *log[3:])))
    LOGS.write_bytes(lzma.compress(json.dumps(rows, separators=(",", ":")).encode()))
    sys.stdout.write(f"{LOGS.name}: {len(rows)} loads, {LOGS.stat().st_size:,} bytes\n")


def main(arguments: Sequence[str]) -> int:
    """Compare both schedulers with random loads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("loads", type=int, nargs="?", default=100, help="number of loads, half with windows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the logs of the test")
    options = parser.parse_args(arguments)
    if (why := refusal()) is not None:
        sys.stderr.write(f"{why}\n")
        return 2
    if options.write:
        _write()
        return 0
    draw = np.random.default_rng(options.seed)
    equal, total = Counter[tuple[bool, str]](), Counter[tuple[bool, str]]()
    for number in range(options.loads):
        groups = GROUPS[int(draw.integers(1, len(GROUPS)))] if number % 2 else GROUPS[0]
        load = drawn(KINDS[number // 2 % len(KINDS)], groups, draw)
        differs = difference(load, _Engine(load).run(), simulated(load), simulated(load, jump=True))
        place = bool(groups[1]), load.kind
        total[place] += 1
        equal[place] += differs is None
        if differs is not None:
            sys.stdout.write(f"load {number}, {load.kind}, groups {groups}, ahead {load.ahead}: {differs}\n")
    for windows in (False, True):
        for kind in KINDS:
            sys.stdout.write(f"{'windows' if windows else 'one group':10} {kind:14}")
            sys.stdout.write(f"{equal[windows, kind]:4} of {total[windows, kind]} equal\n")
        parts = (sum(count for (one, _), count in rows.items() if one == windows) for rows in (equal, total))
        sys.stdout.write("{} of {} equal\n".format(*parts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
