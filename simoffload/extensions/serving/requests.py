"""Requests of a stream: when they arrive, how long they are, and what they have in common.

Arrivals, lengths and prefixes have random numbers of their own (``SeedSequence.spawn``): a change of one
leaves the others. Gaps are drawn at rate 1 and divided by the rate, so that streams of two rates differ in
nothing else (common random numbers).
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simoffload.errors import InputError
from simoffload.extensions.serving.scheduler import AFTER_ANY, Runs
from simoffload.scenario.streams import (
    Arrivals,
    Clients,
    Closed,
    Constant,
    Exponential,
    Fixed,
    Length,
    Lognormal,
    Pareto,
    Poisson,
    Ramp,
    SharedPrefix,
    StreamOptions,
    Uniform,
)

__all__ = ["Requests", "arranged", "arrival_times", "drawn", "lengths"]

Times = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]
_USUAL_NUMBER = 1000
"""Number of requests of a stream that states none (our choice)."""
_HASHED = 4096
"""Number of prompts whose texts are hashed together (our choice)."""


class Requests(NamedTuple):
    """Requests are the rows of a stream."""

    arrival: Times
    """Time of arrival [s], ascending over the rows that follow no other; of the rest the time after the end
    of the request that it follows."""
    prompt: Tokens
    """Tokens of the prompt, at least 1."""
    output: Tokens
    """Tokens that are generated, at least 1."""
    runs: list[Runs]
    """For each request the runs (key, tokens) of its prompt, or None if it shares nothing. Equal keys at
    equal positions are equal tokens; the key -1 - r stands for what request r generated."""
    after: Tokens
    """Row of the request after whose end it arrives; -1 if it follows none, and ``AFTER_ANY`` if it follows
    the next end of a request that no row follows."""

    @property
    def is_open(self) -> bool:
        """Whether no arrival depends on an answer."""
        return bool((self.after == -1).all())

    def first(self, number: int | None) -> Requests:
        """Return so many of the first rows; None: all."""
        arrival, prompt, output, runs, after = self
        return Requests(arrival[:number], prompt[:number], output[:number], runs[:number], after[:number])

    @property
    def digest(self) -> str:
        """Hash of all rows, equal for equal requests."""
        found = sha256(
            b"".join(one.tobytes() for one in (self.arrival, self.prompt, self.output, self.after))
        )
        for begin in range(0, len(self.runs), _HASHED):
            found.update(repr(self.runs[begin : begin + _HASHED]).encode())
        return found.hexdigest()


def open_requests(arrival: Times, prompt: Tokens, output: Tokens, runs: list[Runs] | None = None) -> Requests:
    """Return requests that follow no other."""
    number = len(arrival)
    return Requests(arrival, prompt, output, runs or [None] * number, np.full(number, -1, dtype=np.int64))


def drawn(options: StreamOptions, *, replication: int = 0) -> Requests:
    """Return the requests of a stream without a trace; each replication has its own random numbers.

    Raises InputError if no turn of any conversation is short enough.
    """
    seeds = np.random.SeedSequence(options.seed, spawn_key=(replication,)).spawn(3)
    times, sizes, prefixes = map(np.random.default_rng, seeds)
    assert options.arrivals is not None
    assert options.prompt is not None
    assert options.output is not None
    number = options.num_prompts or _USUAL_NUMBER
    prompt, output = lengths(options.prompt, sizes, number), lengths(options.output, sizes, number)
    turns = _turns(options, sizes, number)
    begins = np.concatenate([[0], turns.cumsum()[:-1]])
    shared = [_shared(one, prefixes, len(turns)) for one in options.prefixes]
    runs: list[Runs] = [None] * number
    if shared or options.conversations:
        prompt, runs = _texts(begins, turns, prompt, output, shared)
        prompt, output, runs, turns = _short_enough(options, prompt, output, runs, turns)
    think_time = None if options.conversations is None else options.conversations.think_time
    arrival, after = arranged(options.arrivals, times, turns, think_time=think_time)
    return Requests(arrival, prompt, output, runs, after)


# -- arrivals ------------------------------------------------------------------------------------


def arranged(
    arrivals: Arrivals, draw: np.random.Generator, turns: Tokens, *, think_time: float | None = None
) -> tuple[Times, Tokens]:
    """Return the columns ``arrival`` and ``after`` of requests in conversations with so many ``turns`` each,
    between which there is a mean time [s]; None: no conversation has a second turn."""
    number, begins = int(turns.sum()), np.concatenate([[0], turns.cumsum()[:-1]])
    arrival, after = np.zeros(number), np.arange(-1, number - 1)
    if think_time is not None:
        arrival[:] = draw.exponential(think_time, number)
    after[begins] = -1
    if isinstance(arrivals, Closed):
        users = min(arrivals.users, len(turns))
        arrival[begins] = draw.exponential(arrivals.think_time, len(begins))
        after[begins[users:]] = AFTER_ANY
        arrival[begins[:users]] = np.sort(arrival[begins[:users]])
    else:
        arrival[begins] = arrival_times(arrivals, draw, len(begins))
    return arrival, after


def arrival_times(arrivals: Arrivals, draw: np.random.Generator, number: int) -> Times:
    """Return the times [s] of so many arrivals, ascending; the first one is a gap after 0.

    Gamma gaps: ``get_request`` of vLLM 0.33.0, ``benchmarks/serve.py``. A ramp is a Poisson process in the
    integral of its rate.
    """
    match arrivals:
        case Poisson(request_rate=rate, burstiness=shape, rescaled=rescaled):
            times = draw.gamma(shape, 1 / shape, number).cumsum()
            if rescaled and number:
                times *= number / times[-1]
            return times / rate
        case Constant(request_rate=rate):
            return np.arange(1, number + 1) / rate
        case Ramp(ramp_up_start_rps=first, ramp_up_end_rps=last):
            counted = draw.exponential(1.0, number).cumsum()
            if first == last:
                return counted / first
            duration = 2 * number / (first + last)
            slope = (last - first) / duration
            inside = np.minimum(counted, number)  # beyond the end the rate stays
            times = (np.sqrt(first**2 + 2 * slope * inside) - first) / slope
            return np.asarray(times + (counted - inside) / last)
        case Clients(clients=clients):
            total = sum(one.request_rate for one in clients)
            streams = []
            for one, seed in zip(clients, draw.spawn(len(clients)), strict=True):
                shape, mean = one.cv**-2, 1 / one.request_rate
                share = number * one.request_rate / total
                count = min(number, int(share + 10 * max(1, one.cv) * share**0.5) + 10)
                streams.append(seed.gamma(shape, mean / shape, count).cumsum())
            return np.sort(np.concatenate(streams))[:number]
    raise TypeError(f"{type(arrivals).__name__} depends on answers")


# -- lengths -------------------------------------------------------------------------------------


def lengths(length: Length, draw: np.random.Generator, number: int) -> Tokens:
    """Return so many numbers of tokens, each at least 1."""
    match length:
        case Fixed(tokens=tokens):
            return np.full(number, tokens, dtype=np.int64)
        case Uniform(min=low, max=high):
            return draw.integers(low, high + 1, number)
        case Lognormal(median=median, sigma=sigma):
            values = median * np.exp(sigma * draw.standard_normal(number))
        case Exponential(mean=mean):
            values = draw.exponential(mean, number)
        case Pareto(median=median, sigma=sigma, tail=tail, scale=scale, alpha=alpha):
            values = median * np.exp(sigma * draw.standard_normal(number))
            beyond = scale * (1 + draw.pareto(alpha, number))
            values = np.where(draw.random(number) < tail, beyond, values)
    return np.clip(np.minimum(values, 1e15).round().astype(np.int64), length.min, length.max)


# -- what requests share -------------------------------------------------------------------------


class _Shared(NamedTuple):
    which: Tokens
    """Number of the text of each conversation."""
    tokens: Tokens
    """Number of tokens of each text."""


def _shared(prefix: SharedPrefix, draw: np.random.Generator, number: int) -> _Shared:
    """Choose a text for each conversation."""
    tokens = lengths(prefix.tokens, draw, prefix.number)
    weights = np.arange(1, prefix.number + 1, dtype=float) ** -prefix.zipf
    bounds = weights.cumsum() / weights.sum()
    which = np.minimum(np.searchsorted(bounds, draw.random(number), side="right"), prefix.number - 1)
    return _Shared(which, tokens)


def _turns(options: StreamOptions, draw: np.random.Generator, number: int) -> Tokens:
    """Return the number of turns of each conversation, together ``number``."""
    if options.conversations is None:
        return np.ones(number, dtype=np.int64)
    turns = lengths(options.conversations.turns, draw, number)
    count = int(np.searchsorted(turns.cumsum(), number)) + 1
    turns = turns[:count]
    turns[-1] -= turns.sum() - number
    return turns


def _texts(
    begins: Tokens, turns: Tokens, own: Tokens, output: Tokens, shared: list[_Shared]
) -> tuple[Tokens, list[Runs]]:
    """Return the length of each prompt and its runs: shared texts, earlier turns with answers, its own."""
    prompt, runs = own.copy(), list[Runs]()
    first = 1 + np.concatenate([[0], np.cumsum([len(one.tokens) for one in shared])]).astype(int)
    for number, (begin, count) in enumerate(zip(begins.tolist(), turns.tolist(), strict=True)):
        text = [
            (int(key + one.which[number]), int(one.tokens[one.which[number]]))
            for key, one in zip(first.tolist(), shared, strict=False)
        ]
        length = sum(tokens for _, tokens in text)
        for row in range(begin, begin + count):
            text.append((int(first[-1]) + row, int(own[row])))
            length += int(own[row])
            prompt[row] = length
            runs.append(tuple(text))
            text.append((-1 - row, int(output[row])))
            length += int(output[row])
    return prompt, runs


def _short_enough(
    options: StreamOptions, prompt: Tokens, output: Tokens, runs: list[Runs], turns: Tokens
) -> tuple[Tokens, Tokens, list[Runs], Tokens]:
    """Leave out the turns of conversations from the first one that is too long, and number the rest."""
    most = options.conversations.max_model_len if options.conversations else None
    if most is None or not (long := prompt + output > most).any():
        return prompt, output, runs, turns
    keep = np.ones(len(prompt), dtype=bool)
    kept, row = [], 0
    for count in turns.tolist():
        within = long[row : row + count]
        left = int(within.argmax()) if within.any() else count
        keep[row + left : row + count] = False
        kept.append(left)
        row += count
    if not keep.any():
        text = f"no first turn has at most {most} tokens with its output; raise it or shorten prompt"
        raise InputError.at("stream.conversations.max_model_len", text)
    number = keep.cumsum() - 1
    renamed = [
        tuple((int(-1 - number[-1 - key]) if key < 0 else key, tokens) for key, tokens in one or ())
        for one, here in zip(runs, keep.tolist(), strict=True)
        if here
    ]
    left_turns = np.array([one for one in kept if one], dtype=np.int64)
    return prompt[keep], output[keep], list(renamed), left_turns
