"""The answer to a scenario of inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from simoffload.results.capacity import CacheBlocks
from simoffload.results.metrics import Passes, all_passes, by_name, metric
from simoffload.results.passes import PassResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import StorageTraffic
from simoffload.units import format_number


def _prefill(result: InferenceResult) -> Passes:
    return result.spent[: 1 + (result.draft_prefill is not None)]


def _decode(result: InferenceResult) -> Passes:
    return result.spent[1 + (result.draft_prefill is not None) :]


def _draft(result: InferenceResult) -> Passes:
    return ((result.draft, result.draft_total_s),) if result.draft else ()


@dataclass(frozen=True, kw_only=True, repr=False)
class InferenceResult(SimulationResult):
    """An InferenceResult has the times of prefill and decode steps."""

    kind: ClassVar[str] = "inference"
    offered: ClassVar[tuple[str, ...]] = ("tokens_per_s", "tpot_s", "ttft_s")

    batch_size: int
    prompt_length: int
    output_length: int
    context: int | None = None
    """[tokens] for which the cache of a sequence must have room; None: for prompt and output."""
    prefill_chunks: int = 1
    """Number of parts in which the prefill is computed, one after the other."""
    prefill_weight_moves: int = 0
    """How often the prefill moves weights outside HBM to the GPU; 0 without such weights, or not counted."""
    cache_blocks: CacheBlocks | None = None
    """Blocks of a paged cache for which each GPU has memory; None without one."""
    prefill: PassResult | None = None
    first_pass: PassResult | None = None
    mean_tokens: float | None = None
    """Mean tokens that a decode step yields for a sequence; None without speculative decoding."""
    decode_steps: int = 0
    """Number of passes after the prefill, each of which yields one token or more."""
    draft_prefill: PassResult | None = None
    """Prefill of the model that proposes tokens; None without one."""
    draft: PassResult | None = None
    """All of its passes of the first decode step."""
    draft_total_s: float = 0.0
    """[s] of its passes of all decode steps."""
    load: PassResult | None = None
    """Loads of the blocks of the prefixes alone; None without any."""
    store: PassResult | None = None
    """Stores of new blocks alone; None without any."""
    allocation: PassResult | None = None
    """Waits of all decode steps for new pinned memory; None without any."""
    traffic: tuple[StorageTraffic, ...] = ()
    """[B] that a generation reads and writes on a tier: blocks of a connector, what a streamed cache
    moves, and what FlexGen has on disk."""
    decode: tuple[PassResult, ...] = ()
    """The decode steps that were simulated, in order of context."""
    spread_bound: float | None = None
    """``spread_bound_tokens_per_s`` [1/s]; None unless weights are gathered from the HBM of several GPUs."""
    gathers: str = ""
    """Name of the method that gathers them, such as "ZeRO-3"; "" for none."""
    rates_prompts: bool = False
    """Whether the rate of prompts is stated beside that of generation."""
    first_pass_why: str = ""
    """Why the first pass takes longer than later ones, in the strategy's words; "" where it does not."""
    decode_total_s: float = 0.0
    """[s] of all decode steps, with those of a draft and their waits for new pinned memory."""
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
        """Batch size, prompt length and output length, and the room of the cache if that is more."""
        more = " context" if self.context is not None else ""
        return by_name(self, f"batch_size prompt_length output_length{more}")

    @property
    def spent(self) -> Passes:
        """Time [s] of the prefill, of all decode steps, represented by the first one, and of their waits for
        new pinned memory; with a draft model, that of its prefill and of its passes, too."""
        if self.prefill is None:
            return ()
        waits = self.kv_allocation_s or 0.0
        first = ((self.draft_prefill, self.draft_prefill.time_s),) if self.draft_prefill else ()
        verified = self.decode_total_s - waits - self.draft_total_s
        decode = ((self.decode[0], verified),) if self.decode else ()
        drafts = ((self.draft, self.draft_total_s),) if self.draft else ()
        waiting = ((self.allocation, waits),) if self.allocation else ()
        return ((self.prefill, self.prefill.time_s), *first, *decode, *drafts, *waiting)

    @property
    def tokens(self) -> int:
        """Tokens generated for all sequences."""
        return self.batch_size * self.replicas * self.output_length

    @property
    def lengths(self) -> tuple[int, int]:
        """[tokens] of prompt and output."""
        return self.prompt_length, self.output_length

    @metric(
        of=_prefill,
        each=" to the first token",
        column="TTFT",
        title="Time to first token (TTFT)",
    )
    def ttft_s(self) -> float | None:
        """Time to first token [s]: time of the prefill pass, after a warm-up pass."""
        if self.prefill is None:
            return None
        return self.prefill.time_s + (self.draft_prefill.time_s if self.draft_prefill else 0.0)

    @metric(of=_prefill, optional=True)
    def prompt_tokens_per_s(self) -> float | None:
        """Prompt throughput [1/s]: batch_size x replicas x prompt_length / ttft_s."""
        if not self.rates_prompts or not self.ttft_s:
            return None
        return self.batch_size * self.replicas * self.prompt_length / self.ttft_s

    @metric(of=_decode, each=" per output token", column="TPOT", title="Time per output token (TPOT)")
    def tpot_s(self) -> float | None:
        """Time per output token [s]: sum of the decode steps / (output_length - 1) (time per output token
        of a sequence)."""
        return self.decode_total_s / (self.output_length - 1) if self.decode else None

    @metric(of=all_passes, column="tokens/s")
    def tokens_per_s(self) -> float | None:
        """Throughput [1/s]: output_length x batch_size x replicas / e2e_s, of all sequences together."""
        return self.output_length * self.batch_size * self.replicas / self.e2e_s if self.e2e_s else None

    @metric(better="", optional=True, text=format_number)
    def tokens_per_step(self) -> float | None:
        """Tokens per decode step: mean tokens that a step yields for each sequence, one of its own and those
        of the draft that are accepted."""
        return self.mean_tokens

    @metric(of=_draft, optional=True)
    def draft_s(self) -> float | None:
        """Draft per decode step [s]: mean time of the passes that propose the tokens of a step."""
        if self.mean_tokens is None or not self.decode:
            return None
        return self.draft_total_s / self.decode_steps

    @metric(of=_decode, optional=True)
    def verify_s(self) -> float | None:
        """Verification per decode step [s]: mean time of the pass that verifies the tokens of a step."""
        if self.mean_tokens is None or not self.decode:
            return None
        return (self.decode_total_s - self.draft_total_s - (self.kv_allocation_s or 0.0)) / self.decode_steps

    @metric(of=_decode)
    def decode_tokens_per_s(self) -> float | None:
        """Decode throughput [1/s]: batch_size x replicas / tpot_s."""
        return self.batch_size * self.replicas / self.tpot_s if self.tpot_s else None

    @metric(better="", optional=True)
    def spread_bound_tokens_per_s(self) -> float | None:
        """Upper bound of decode throughput without gathering [1/s]: batch_size x ranks x HBM rate / (fewest
        weights that a step reads / ranks + mean key-value cache of a GPU): a bound, not a prediction, of
        decode with weights spread over the GPUs and not gathered{result.as_it_gathers}."""
        return self.spread_bound

    @metric(of=all_passes)
    def e2e_s(self) -> float | None:
        """End-to-end time [s]: ttft_s + sum of the decode steps."""
        return self.ttft_s + self.decode_total_s if self.ttft_s is not None else None

    @metric(optional=True)
    def kv_load_s(self) -> float | None:
        """Loads of cached blocks [s]: time of the loads of all blocks of the prefixes alone; ttft_s contains
        them."""
        return self.load.time_s if self.load else None

    @metric(optional=True)
    def kv_store_s(self) -> float | None:
        """Stores of new blocks [s]: time of the stores of the new blocks of a generation, with nothing else
        on the links."""
        return self.store.time_s if self.store else None

    @metric(optional=True)
    def kv_allocation_s(self) -> float | None:
        """Waits for new pinned memory [s]: time for which all decode steps together wait for new pinned
        memory of an offloaded cache, in the second generation of a process; tpot_s and e2e_s contain it, the
        times of single steps do not."""
        return self.allocation.time_s if self.allocation else None

    @metric(optional=True)
    def kv_backlog_s(self) -> float | None:
        """Stores after the last pass [s]: time for which the stores of a generation continue after its decode
        steps (without any: after its prefill)."""
        step = self.token_pass
        if self.store is None or step is None:
            return None
        if not step.unfinished_s:  # later steps take longer, and store as much
            return 0.0
        steps, passes_s = (self.decode_steps, self.decode_total_s) if self.decode else (1, step.time_s)
        return max(0.0, steps * (step.time_s + step.unfinished_s) - passes_s)

    @metric()  # no real run shows its error (docs/limits.md)
    def first_pass_s(self) -> float | None:
        """First pass after loading [s]: time of the warm-up pass{result.first_pass_reason}."""
        return self.first_pass.time_s if self.first_pass else None

    @metric(of=all_passes)
    def per_token_s(self) -> float | None:
        """Time per token of all sequences [s]: e2e_s / (output_length x batch_size x replicas), time over the
        tokens of all sequences, as transformers-bloom-inference and DDN's white paper count it."""
        return 1 / self.tokens_per_s if self.tokens_per_s else None

    @property
    def step_by(self) -> str:
        """Name of the time of one pass for a token: time per output token, or with one token, time to first
        token."""
        return "tpot_s" if self.output_length > 1 else "ttft_s"

    @property
    def latency_by(self) -> str:
        """Name of the time of a whole request."""
        return "e2e_s"

    @property
    def usual_by(self) -> str:
        """Name of the time by which results are compared: that of the whole request per token of all
        sequences, or with one token, time to first token."""
        return "per_token_s" if self.output_length > 1 else "ttft_s"

    @property
    def usual_metric(self) -> str:
        """Name of the metric in which people read it: tokens/s of the whole request, or with one token, time
        to first token."""
        return "tokens_per_s" if self.output_length > 1 else "ttft_s"

    @property
    def others(self) -> tuple[str, ...]:
        """The times of both kinds of passes."""
        return ("ttft_s", "tpot_s")

    @property
    def sequences(self) -> int:
        """Number of sequences that all replicas process together."""
        return self.batch_size * self.replicas

    @property
    def token_pass(self) -> PassResult | None:
        """Pass that makes a token: the first decode step, or the prefill if there is none."""
        return self.decode[0] if self.decode else self.prefill

    @property
    def step(self) -> PassResult | None:
        """Pass with most of the compared time: the prefill, or the first decode step, which stands for all
        of them."""
        named = [one for one, _ in self.composed.get(self.compared_by, ())]
        prefill, decode = self.prefill, self.token_pass
        if prefill is None or not any(one is prefill for one in named):
            return decode
        decoded = any(one is decode for one in named) and self.decode_total_s >= prefill.time_s
        return decode if decoded else prefill

    @property
    def passes(self) -> tuple[PassResult, ...]:
        """First pass, prefill and the decode steps that were simulated."""
        return tuple(
            one
            for one in (
                self.first_pass,
                self.prefill,
                self.draft_prefill,
                self.load,
                self.store,
                *self.decode,
                self.draft,
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
            "decode_steps": self.decode_steps if self.decode else 0,
            "decode_steps_simulated": len(self.decode),
            **by_name(self, "decode_steps_estimated=decode_estimated decode_bound"),
        }
