"""The answer to a scenario of inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from simoffload.results.capacity import CacheBlocks
from simoffload.results.endurance import TierLifetime
from simoffload.results.metrics import Passes, metric
from simoffload.results.passes import PassResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import StorageTraffic
from simoffload.results.values import by_name


def _whole(result: InferenceResult) -> Passes:
    return result.spent


def _decode(result: InferenceResult) -> Passes:
    return result.spent[1:]


@dataclass(frozen=True, kw_only=True)
class InferenceResult(SimulationResult):
    """An InferenceResult has the times of prefill and decode steps."""

    kind: ClassVar[str] = "inference"

    batch_size: int
    prompt_length: int
    output_length: int
    prefill_chunks: int = 1
    """Number of parts in which the prefill is computed, one after the other."""
    prefill_weight_moves: int = 0
    """How often the prefill moves weights outside HBM to the GPU; 0 without such weights, or not counted."""
    cache_blocks: CacheBlocks | None = None
    """Blocks of a paged cache for which each GPU has memory; None without one."""
    prefill: PassResult | None = None
    first_pass: PassResult | None = None
    load: PassResult | None = None
    """Loads of the blocks of the prefixes alone; None without any."""
    store: PassResult | None = None
    """Stores of new blocks alone; None without any."""
    allocation: PassResult | None = None
    """Waits of all decode steps for new pinned memory; None without any."""
    traffic: tuple[StorageTraffic, ...] = ()
    """[B] that a generation reads and writes on a tier: blocks of a connector, what a streamed cache
    moves, and what FlexGen has on disk."""
    drive_lifetime: tuple[TierLifetime, ...] = ()
    """Lifetime of the drives that are written to."""
    decode: tuple[PassResult, ...] = ()
    """The decode steps that were simulated, in order of context."""
    spread_bound: float | None = None
    """``spread_bound_tokens_per_s`` [1/s]; None unless weights are gathered from the HBM of several GPUs."""
    gathers: str = ""
    """Name of the method that gathers them, such as "ZeRO-3"; "" for none."""
    first_pass_why: str = ""
    """Why the first pass takes longer than later ones, in the strategy's words; "" where it does not."""
    decode_total_s: float = 0.0
    """[s] of all decode steps, with their waits for new pinned memory."""
    decode_bound: float = 0.0
    """Relative error bound of interpolated decode steps; 0 if all are exact."""
    decode_estimated: int = 0
    """Number of decode steps whose times were interpolated."""

    @property
    def as_it_gathers(self) -> str:
        """The end of the sentence about weights that are not gathered: ", as ZeRO-3 does"."""
        return f", as {self.gathers} does" if self.gathers else ""

    @property
    def first_pass_reason(self) -> str:
        """The end of the sentence about the warm-up pass: ": " and why it takes longer."""
        return f": {self.first_pass_why}" if self.first_pass_why else ""

    @property
    def workload(self) -> dict[str, Any]:
        """Batch size, prompt length and output length."""
        return by_name(self, "batch_size prompt_length output_length")

    @property
    def spent(self) -> Passes:
        """Time [s] of the prefill, of all decode steps, represented by the first one, and of their waits for
        new pinned memory."""
        if self.prefill is None:
            return ()
        waits = self.kv_allocation_s or 0.0
        decode = ((self.decode[0], self.decode_total_s - waits),) if self.decode else ()
        waiting = ((self.allocation, waits),) if self.allocation else ()
        return ((self.prefill, self.prefill.time_s), *decode, *waiting)

    @property
    def tokens(self) -> int:
        """Tokens generated for all sequences."""
        return self.batch_size * self.replicas * self.output_length

    @property
    def lengths(self) -> tuple[int, int]:
        """[tokens] of prompt and output."""
        return self.prompt_length, self.output_length

    @metric(
        "time to first token",
        "time to first token: time of the prefill pass, after a warm-up pass",
        of=lambda result: result.spent[:1],
        title="Time to first token (TTFT)",
        each=" to the first token",
        column="TTFT",
        elsewhere="TTFT",
    )
    def ttft_s(self) -> float | None:
        """Time to first token [s]."""
        return self.prefill.time_s if self.prefill else None

    @metric(
        "time per output token",
        "sum of the decode steps / number of decode steps (time per output token of a sequence)",
        of=_decode,
        title="Time per output token (TPOT)",
        each=" per output token",
        column="TPOT",
        elsewhere="TPOT of vLLM and MLPerf; ITL of aiperf",
    )
    def tpot_s(self) -> float | None:
        """Time per output token [s]; None when only one token is generated."""
        return self.decode_total_s / (self.output_length - 1) if self.decode else None

    @metric(
        "throughput",
        "output_length x batch_size x replicas / e2e_s, of all sequences together",
        of=_whole,
        column="tokens/s",
        elsewhere="output throughput",
    )
    def tokens_per_s(self) -> float | None:
        """Generated tokens per second over all ranks [1/s]."""
        return self.output_length * self.batch_size * self.replicas / self.e2e_s if self.e2e_s else None

    @metric("decode throughput", "batch_size x replicas / tpot_s", of=_decode)
    def decode_tokens_per_s(self) -> float | None:
        """Tokens per second of the decode steps over all ranks [1/s]."""
        return self.batch_size * self.replicas / self.tpot_s if self.tpot_s else None

    @metric(
        "upper bound of decode throughput without gathering",
        "batch_size x ranks x HBM rate / (fewest weights that a step reads / ranks + mean key-value cache of "
        "a GPU): a bound, not a prediction, of decode with weights spread over the GPUs and not gathered"
        "{result.as_it_gathers}",
        better="",
        optional=True,
        elsewhere="tensor parallelism divides weights in this way",
    )
    def spread_bound_tokens_per_s(self) -> float | None:
        """``spread_bound`` [1/s], or None without one."""
        return self.spread_bound

    @metric("end-to-end time", "ttft_s + sum of the decode steps", of=_whole, elsewhere="E2EL")
    def e2e_s(self) -> float | None:
        """Time of one whole generation [s]."""
        return self.prefill.time_s + self.decode_total_s if self.prefill else None

    @metric(
        "loads of cached blocks",
        "time of the loads of all blocks of the prefixes alone; ttft_s contains them",
        optional=True,
        elsewhere="KV transfer time of Mooncake",
    )
    def kv_load_s(self) -> float | None:
        """Time of the loads of blocks alone [s]."""
        return self.load.time_s if self.load else None

    @metric(
        "stores of new blocks",
        "time of the stores of the new blocks of a generation, with nothing else on the links",
        optional=True,
    )
    def kv_store_s(self) -> float | None:
        """Time of the stores of blocks alone [s]."""
        return self.store.time_s if self.store else None

    @metric(
        "waits for new pinned memory",
        "time for which all decode steps together wait for new pinned memory of an offloaded cache, in the "
        "second generation of a process; tpot_s and e2e_s contain it, the times of single steps do not",
        optional=True,
        elsewhere="`cudaHostAlloc` of PyTorch's `CachingHostAllocator`",
    )
    def kv_allocation_s(self) -> float | None:
        """Time for which decode steps wait for new pinned memory [s]."""
        return self.allocation.time_s if self.allocation else None

    @metric(
        "stores after the last pass",
        "time for which the stores of a generation continue after its decode steps (without any: after its "
        "prefill)",
        optional=True,
    )
    def kv_backlog_s(self) -> float | None:
        """Time for which stores of blocks outlast the passes beside which they run [s]; None without any."""
        step = self.step
        if self.store is None or step is None:
            return None
        if not step.unfinished_s:  # later steps take longer, and store as much
            return 0.0
        steps, passes_s = (self.output_length - 1, self.decode_total_s) if self.decode else (1, step.time_s)
        return max(0.0, steps * (step.time_s + step.unfinished_s) - passes_s)

    @metric("first pass after loading", "time of the warm-up pass{result.first_pass_reason}")
    def first_pass_s(self) -> float | None:
        """Time of the first pass after loading [s], whose error no real run shows (docs/limits.md)."""
        return self.first_pass.time_s if self.first_pass else None

    @metric(
        "time per token of all sequences",
        "e2e_s / (output_length x batch_size x replicas), time over the tokens of all sequences, as "
        "transformers-bloom-inference and DDN's white paper count it",
        of=_whole,
        elsewhere='"throughput per token" of transformers-bloom-inference, "inference time" of DDN',
    )
    def per_token_s(self) -> float | None:
        """Time over the tokens of all sequences [s]."""
        return 1 / self.tokens_per_s if self.tokens_per_s else None

    @property
    def compared_by(self) -> str:
        """Name of the time by which results are compared: time per output token, or with one token, time to
        first token."""
        return "tpot_s" if self.output_length > 1 else "ttft_s"

    @property
    def step(self) -> PassResult | None:
        """Pass that represents the run: the first decode step, or the prefill if there is none."""
        return self.decode[0] if self.decode else self.prefill

    @property
    def passes(self) -> tuple[PassResult, ...]:
        """First pass, prefill and the decode steps that were simulated."""
        return tuple(
            one
            for one in (
                self.first_pass,
                self.prefill,
                self.load,
                self.store,
                *self.decode,
                self.allocation,
            )
            if one
        )

    def particulars(self) -> dict[str, Any]:
        """Return the number of simulated decode steps, and the error bound of the others."""
        blocks = by_name(self, "traffic drive_lifetime") if self.traffic else {}
        if self.cache_blocks is not None:
            blocks |= {"cache_blocks": self.cache_blocks.to_dict()}
            blocks |= by_name(self, "prefill_chunks prefill_weight_moves")
        return {
            **blocks,
            "decode_steps": self.output_length - 1 if self.decode else 0,
            "decode_steps_simulated": len(self.decode),
            **by_name(self, "decode_steps_estimated=decode_estimated decode_bound"),
        }
