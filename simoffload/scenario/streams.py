"""The section ``stream`` of a scenario: which requests arrive, how they are scheduled, what is promised."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from simoffload.documents import Frozen
from simoffload.units import Seconds

Count = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
PerSecond = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Factor = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Positive = Annotated[Seconds, Field(gt=0)]


# -- arrivals ------------------------------------------------------------------------------------


class Poisson(Frozen):
    """Arrivals at a mean rate, as ``vllm bench serve`` draws them: gaps have a gamma distribution."""

    kind: Literal["poisson"]
    request_rate: PerSecond
    """Mean number of arrivals per second."""
    burstiness: Factor = 1.0
    """Shape of the gamma distribution; the coefficient of variation of the gaps is 1/sqrt(burstiness). 1: a
    Poisson process; less: bursts."""
    rescaled: bool = False
    """Whether gaps are scaled so that the last request arrives at its mean time, as ``vllm bench serve``
    does."""


class Constant(Frozen):
    """Arrivals with equal gaps between them."""

    kind: Literal["constant"]
    request_rate: PerSecond
    """Number of arrivals per second."""


class Ramp(Frozen):
    """Poisson arrivals whose rate grows or falls evenly in time."""

    kind: Literal["ramp"]
    ramp_up_start_rps: PerSecond
    """Rate of arrivals at the begin [1/s]."""
    ramp_up_end_rps: PerSecond
    """Rate of arrivals at the end [1/s]."""


class Client(Frozen):
    """One of the clients whose requests together are the stream (ServeGen, arXiv 2505.09999)."""

    request_rate: PerSecond
    """Mean number of its requests per second."""
    cv: Factor = 1.0
    """Coefficient of variation of the gaps between its requests."""


class Clients(Frozen):
    """Arrivals of several clients, each with its rate and bursts: gaps have a gamma distribution."""

    kind: Literal["clients"]
    clients: Annotated[tuple[Client, ...], Field(min_length=1, max_length=10_000)]


class Closed(Frozen):
    """A fixed number of users, each of whom sends the next request some time after the last answer."""

    kind: Literal["closed"]
    users: Annotated[Count, Field(le=1_000_000)]
    think_time: Seconds = 0.0
    """Mean time from an answer to the next request, exponentially distributed; 0: at once, which is
    ``--max-concurrency`` of ``vllm bench serve``."""


Arrivals = Annotated[Poisson | Constant | Ramp | Clients | Closed, Field(discriminator="kind")]


# -- lengths -------------------------------------------------------------------------------------


class Fixed(Frozen):
    """The same number for all."""

    kind: Literal["fixed"]
    tokens: Count

    @property
    def longest(self) -> int:
        """Largest number of tokens, as of each of them."""
        return self.tokens


class _Bounded(Frozen):
    min: Count = 1
    """Numbers below are raised to it."""
    max: Count = 10_000_000
    """Numbers above are lowered to it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}; lower min, or raise max")
        return self

    @property
    def longest(self) -> int | None:
        """The largest number; None where no ``max`` is stated."""
        return self.max if "max" in self.model_fields_set else None


class Uniform(_Bounded):
    """Each number from ``min`` to ``max`` is as frequent."""

    kind: Literal["uniform"]


class Lognormal(_Bounded):
    """The logarithm has a normal distribution."""

    kind: Literal["lognormal"]
    median: Factor
    sigma: Annotated[float, Field(ge=0, le=10)]
    """Standard deviation of the natural logarithm."""


class Exponential(_Bounded):
    """ServeGen's distribution of the lengths of outputs."""

    kind: Literal["exponential"]
    mean: Factor


class Pareto(_Bounded):
    """ServeGen's distribution of prompts: lognormal, and of some requests a Pareto tail."""

    kind: Literal["pareto"]
    median: Factor
    """Median of the lognormal part."""
    sigma: Annotated[float, Field(ge=0, le=10)]
    tail: Annotated[float, Field(ge=0, le=1)]
    """Share of requests in the tail."""
    scale: Factor
    """Smallest number in the tail."""
    alpha: Factor
    """Exponent with which the tail falls."""


Length = Annotated[Fixed | Uniform | Lognormal | Exponential | Pareto, Field(discriminator="kind")]


# -- what requests share -------------------------------------------------------------------------


class SharedPrefix(Frozen):
    """Texts that requests begin with: system prompts, or documents; each request has one of them."""

    tokens: Length
    """Number of tokens of each text."""
    number: Annotated[Count, Field(le=1_000_000)] = 1
    """Number of different texts to choose from."""
    zipf: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Exponent of their popularity: the k-th text has a weight of 1/k^zipf; 0: all are as popular."""


class Conversations(Frozen):
    """Each arrival begins a conversation, whose turns contain all that was written before."""

    turns: Length
    """Number of turns, tokens standing for turns."""
    think_time: Seconds = 0.0
    """Mean time from an answer to the next turn, exponentially distributed."""
    max_model_len: Count | None = None
    """A conversation ends before a turn whose prompt and output are longer together."""


class TraceOptions(Frozen):
    """Recorded requests: their arrivals, lengths, and common prefixes where the file has them."""

    file: Annotated[str, Field(min_length=1, max_length=4096)]
    """Path of the file relative to the scenario, or a shipped trace: mooncake-conversation-1000.jsonl
    (Mooncake, Apache-2.0) or azure-2023-conversation-2000.csv (Azure, CC-BY-4.0). Formats are known by
    content: Mooncake, Qwen-Bailian, Azure, BurstGPT, ``vllm bench serve --save-detailed``, AIPerf, or CSV
    with the columns arrival [s], prompt and output."""
    skip: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 0
    """Number of requests at the begin that are left out."""
    rate_factor: Factor = 1.0
    """Factor of the rate of arrivals; times are divided by it."""
    repeat: Annotated[Count, Field(le=100_000)] = 1
    """How many times the trace is played, one after the other."""
    spread: bool = False
    """Whether requests with equal stamps are spread evenly over the time to the next stamp (Mooncake's stamps
    are 3 s apart)."""


class StreamLimits(Frozen):
    """Limits that a request must keep to count for goodput."""

    ttft: Positive | None = None
    """Longest time to the first token."""
    tpot: Positive | None = None
    """Longest mean time per output token after the first."""
    e2el: Positive | None = None
    """Longest time from arrival to the last token."""
    attain: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of requests that must keep all limits for a rate to be sustained (DistServe: 0.9; MLPerf:
    0.99)."""

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return (self.ttft, self.tpot, self.e2el) != (None, None, None)


class StreamOptions(Frozen):
    """Requests that arrive at one replica of the scenario's plan, and its scheduler."""

    num_prompts: Count | None = None
    """Number of requests; None: all of a trace, 1,000 otherwise."""
    seed: Annotated[int, Field(strict=True, ge=0, le=2**63)] = 0
    """Seed of arrivals, lengths and prefixes, each of which has its own random numbers."""
    arrivals: Arrivals | None = None
    """When requests arrive; required without a trace, and with one it replaces the stamps."""
    prompt: Length | None = None
    """Tokens of a prompt, or of a turn, beside what it shares."""
    output: Length | None = None
    """Tokens that a request generates."""
    trace: TraceOptions | None = None
    """Recorded requests, instead of lengths and prefixes."""
    prefixes: Annotated[tuple[SharedPrefix, ...], Field(max_length=100)] = ()
    """What prompts begin with, in this order: a system prompt, a document."""
    conversations: Conversations | None = None
    """Turns of conversations; without, each request is for itself."""
    replications: Annotated[Count, Field(le=1000)] = 5
    """Number of simulated streams with random numbers of their own, from which intervals come; a trace with
    its own stamps has one."""
    warm_up: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of the requests at the begin that is not counted; None: none of a trace with its own stamps, of
    other streams those before the times to the first token are steady (MSER-5), half of them at most."""
    scheduler: Literal["vllm", "static"] = "vllm"
    """``vllm``: vLLM V1 with chunked prefill. ``static``: batches one after the other."""
    max_num_batched_tokens: Count | None = None
    """Largest number of tokens in a step; None: as the strategy has it, or vLLM on this GPU."""
    max_num_seqs: Annotated[Count, Field(le=1_000_000)] | None = None
    """Largest number of running requests, and the size of static batches; None: as vLLM has it on this
    GPU."""
    block_size: Annotated[Count, Field(le=65_536)] | None = None
    """Tokens of a block of the key-value cache; None: 16."""
    kv_blocks: Count | None = None
    """Number of blocks of the key-value cache (``num_gpu_blocks_override``), each in one group of layers;
    None: what the memory of the GPU holds."""
    enable_prefix_caching: bool = True
    """Whether blocks of earlier requests are used again."""
    async_scheduling: bool = True
    """Whether a step is scheduled while the one before is computed."""
    slo: StreamLimits = StreamLimits()
    """Limits that count for goodput."""

    elsewhere: ClassVar = {
        "users": "write stream.arrivals={kind: closed, users: 20}",
        **dict.fromkeys(
            ("rate", "request_rate"), 'write stream.arrivals={kind: poisson, request_rate: "2 /s"}'
        ),
    }

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check()
        return self

    @property
    def longest(self) -> int | None:
        """Most tokens of a request, those that it generates among them; None where nothing stated limits
        them."""
        if self.conversations is not None:
            return self.conversations.max_model_len
        lengths = (self.prompt, self.output, *(one.tokens for one in self.prefixes))
        bounds = [None if one is None else one.longest for one in lengths]
        known = [one for one in bounds if one is not None]
        return sum(known) if len(known) == len(bounds) else None

    def check(self) -> None:
        """Raise ValueError for options that contradict each other, or are not complete."""
        drawn = self.prompt is not None or self.output is not None
        if self.trace is not None and (drawn or self.prefixes or self.conversations):
            raise ValueError("a trace has its own lengths; remove prompt, output, prefixes and conversations")
        if self.trace is None and (self.prompt is None or self.output is None or self.arrivals is None):
            raise ValueError("write arrivals, prompt and output, or a trace")
        most, running = self.max_num_batched_tokens, self.max_num_seqs
        if self.scheduler == "vllm" and most is not None and running is not None and running > most:
            raise ValueError(
                f"max_num_seqs {running} is above max_num_batched_tokens {most}: every running request needs "
                "a token; lower it"
            )
