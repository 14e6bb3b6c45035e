"""The start of an engine and the runs on it, which are tasks of one process (child process only)."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any

from simoffload_calibrate.child import Job
from simoffload_calibrate.micro.benchmarks import SkippedError
from simoffload_calibrate.vllm.engine import Engine

_REPETITIONS, _ENOUGH = 4, 8.0
"""The number of timed batches of a run, and the time [s] after which no other begins (our choice); one before
them is not counted, in which kernels are loaded."""
_ATTEMPTS = 4
"""The number of times that a run is made at most, while kernels are compiled in it (our choice). Triton
compiles some kernels anew for numbers of tokens that no step had before, which takes about a second."""
_SETTLING, _DRAINING = 3, 2
"""The number of decode steps at the begin and at the end of a batch that are not counted: with asynchronous
scheduling, steps of other batches overlap with them."""
_WAIT = 0.002
"""[s] Longest wait for the next arrival while nothing is computed."""
_COLUMNS = ("begin", "scheduler", "tokens", "sequences", "running", "waiting", "preempted")
_DIGITS = 6


def start(job: Job) -> dict[str, Any]:
    """Start the engine of a set of processes, let it load its kernels, and return its facts."""
    settings = job.data["engine"]
    folder = Path(job.data["folder"]) / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings["config"]), encoding="utf-8")
    begin = time.perf_counter()
    engine = job.kept["engine"] = Engine({**settings["options"], "model": str(folder)})
    starting = time.perf_counter() - begin
    room = min(settings["options"]["max_model_len"], engine.blocks * engine.block_size)
    longest = max(1, min(room - 8, engine.tokens))
    for prompt in (40, 600, 2100, longest):
        if prompt <= longest:
            _Service(engine, [prompt], [8]).serve()
    several = min(64, engine.blocks // 8)
    _Service(engine, [40] * several, [8] * several).serve()
    return {**engine.facts(), "starting_s": round(starting, 3)}


def carry_out(job: Job) -> dict[str, Any]:
    """Run the batch or the stream of a task and return its record.

    A run in which kernels were compiled is made again, as often as its time limit and ``_ATTEMPTS`` allow;
    the record says how many were compiled in the last one.
    """
    case, engine = job.data["case"], job.kept["engine"]
    clock = time.perf_counter
    begin = clock()
    for attempt in range(1, 1 + (1 if case["quick"] else _ATTEMPTS)):
        found: dict[str, Any]
        if case["requests"] is None:
            found = {"passes": _batches(engine, case["workload"], quick=case["quick"])}
        else:
            found = _stream(engine, case["requests"])
        each = (clock() - begin) / attempt
        if not engine.compilations or clock() - begin + 1.5 * each > case["seconds"]:
            break
    found["compilations"] = engine.compilations if engine.sees_compilations else None
    facts = ("name", "model", "workload", "stream", "strategy", "ranks")
    return {**{key: case[key] for key in facts if case[key] is not None}, **found}


def _batches(engine: Engine, work: Mapping[str, Any], *, quick: bool) -> list[dict[str, Any]]:
    """Return the passes of equal batches that come one after the other."""
    batch, prompt, output = (work[key] for key in ("batch_size", "prompt_length", "output_length"))
    needed = batch * -(-(prompt + output) // engine.block_size)
    if needed > engine.blocks:
        has = f"and the engine has {engine.blocks:,}"
        raise SkippedError(f"the batch needs {needed:,} blocks of the cache, {has}; use a smaller one")
    passes: list[dict[str, Any]] = []
    begin = time.perf_counter()
    for repetition in range(2 if quick else 1 + _REPETITIONS):
        if repetition > 1 and time.perf_counter() - begin > _ENOUGH:
            break
        service = _Service(engine, [prompt] * batch, [output] * batch)
        if repetition == 1:
            engine.compilations = 0
        service.serve()
        if repetition:
            passes += service.passes(repetition)
    if not passes:
        least = _SETTLING + _DRAINING + 2
        text = f"no step has a token of every sequence; use a smaller batch, or an output of {least} tokens"
        raise SkippedError(f"{text} or more")
    return passes


def _stream(engine: Engine, requests: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times of each request of a stream, and its steps, as columns."""
    engine.forget_prefixes()
    engine.compilations = 0
    service = _Service(engine, requests["prompt"], requests["output"], requests)
    begin = service.serve()
    steps = [(round(at - begin, _DIGITS), round(taken, _DIGITS), *rest) for at, taken, *rest in engine.steps]
    named = dict(zip(_COLUMNS, map(list, zip(*steps, strict=True)), strict=True)) if steps else {}
    return {"requests": {**requests, **service.columns()}, "steps": named}


class _Service:
    """Requests of random tokens and the times at which the engine served them, from the begin on [s]."""

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[int],
        outputs: Sequence[int],
        requests: Mapping[str, Any] | None = None,
    ) -> None:
        given = requests or {}
        number = len(prompts)
        self._engine, self._outputs = engine, outputs
        self._arrival: list[float] = list(given.get("arrival") or [0.0] * number)
        self._after: Sequence[int] = given.get("after") or [-1] * number
        self._runs: Sequence[Any] = given.get("runs") or [None] * number
        self._serial = random.Random(time.perf_counter_ns()).getrandbits(64)
        self._texts: dict[Any, list[int]] = {}
        self._prompts = [self._tokens(f"own {row}", length) for row, length in enumerate(prompts)]
        longest: dict[int, int] = defaultdict(int)
        for key, tokens in (run for one in self._runs for run in one or () if run[0] >= 0):
            longest[key] = max(longest[key], tokens)
        self._texts = {key: self._tokens(f"text {key}", tokens) for key, tokens in longest.items()}
        self._times = {name: [0.0] * number for name in ("arrived", "added", "adding", "first", "last")}
        self._cached = [0] * number
        self._made: list[list[int]] = [[] for _ in range(number)]
        self._ready: list[tuple[float, int]] = []
        """For each step with tokens: the time at which they were there [s], and how many."""

    def _tokens(self, name: str, length: int) -> list[int]:
        draw = random.Random(f"{self._serial} {name}")
        return draw.choices(range(self._engine.vocabulary), k=length)

    def _prompt(self, row: int) -> list[int]:
        """Return the tokens of a prompt, of which runs with keys below 0 are what other requests made."""
        if self._runs[row] is None:
            return self._prompts[row]
        own: list[int] = []
        for key, size in self._runs[row]:
            own += (self._texts[key] if key >= 0 else self._made[-1 - key])[:size]
        return own + self._prompts[row][len(own) :]

    def serve(self) -> float:
        """Serve all requests, each from its arrival on, and return the time of the begin [s]."""
        engine, clock = self._engine, time.perf_counter
        followers: dict[int, list[int]] = defaultdict(list)
        for row, before in enumerate(self._after):
            followers[before].append(row)
        due, others = [(self._arrival[row], row) for row in followers[-1]], followers[-2][::-1]
        heapify(due)
        rows: dict[str, int] = {}
        engine.steps.clear()
        begin = clock()
        while due or engine.busy:
            while due and due[0][0] <= clock() - begin:
                arrival, row = heappop(due)
                adding = clock()
                rows[engine.add(self._prompt(row), self._outputs[row])] = row
                added = clock()
                self._note(row, arrived=arrival, added=added - begin, adding=added - adding)
            if not engine.busy:
                time.sleep(max(0.0, min(_WAIT, due[0][0] - (clock() - begin))))
                continue
            found = list(engine.step())
            now, count = clock() - begin, 0
            for one in found:
                row = rows[one.key]
                if one.tokens:
                    if not self._made[row]:
                        self._note(row, first=now)
                        self._cached[row] = one.cached
                    self._note(row, last=now)
                    self._made[row] += one.tokens
                    count += len(one.tokens)
                if one.finished:
                    after = followers[row]
                    if not after and others:  # -2: of a user who has sent all of a conversation
                        after = [others.pop()]
                    for other in after:
                        heappush(due, (now + self._arrival[other], other))
            if count:
                self._ready.append((now, count))
        return begin

    def _note(self, row: int, **times: float) -> None:
        for name, time_s in times.items():
            self._times[name][row] = time_s

    def passes(self, repetition: int) -> list[dict[str, Any]]:
        """Return the prefill, if it was one step, and decode steps in which every sequence got a token, those
        at the begin and at the end excepted."""
        times = [at for at, count in self._ready if count == len(self._outputs)]
        gaps = [after - before for before, after in pairwise(times)]
        settled = list(enumerate(gaps, start=1))[_SETTLING:-_DRAINING]
        found = [(f"decode {number}", gap) for number, gap in settled]
        if len(set(self._times["first"])) == 1:
            found.insert(0, ("prefill", self._times["first"][0] - max(self._times["added"])))
        return [{"name": name, "repetition": repetition, "seconds": round(s, 7)} for name, s in found]

    def columns(self) -> dict[str, Any]:
        """Return the times of all requests [s], and their numbers of tokens that were made and found."""
        times = {name: [round(one, _DIGITS) for one in values] for name, values in self._times.items()}
        return {**times, "made": list(map(len, self._made)), "cached": self._cached}
