"""Replicas that serve the stream of a scenario with its plan, one for each replication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from simoffload.documents import Edit
from simoffload.errors import CapacityError, InputError
from simoffload.extensions.serving.answers import StreamMeasures, mser
from simoffload.extensions.serving.prefixes import RadixCache
from simoffload.extensions.serving.replica import Replica, StepTime, turns
from simoffload.extensions.serving.requests import Requests, drawn
from simoffload.extensions.serving.saved_steps import SavedSteps, StreamCheckpoints, key_of
from simoffload.extensions.serving.scheduler import (
    AFTER_ANY,
    ReplicaState,
    Scheduler,
    StaticBatches,
    VllmScheduler,
)
from simoffload.extensions.serving.steps import Point, Scaled, SimulatedSteps, StepTable
from simoffload.extensions.serving.traces import RecordedTrace, read_trace
from simoffload.limits import keep, limited, now_doing
from simoffload.progress import stage
from simoffload.scenario import LoadedScenario
from simoffload.scenario.streams import Closed, StreamOptions
from simoffload.strategies import ServingLimits
from simoffload.units import format_number, percent, plural

__all__ = ["StreamSimulation", "requests_of"]

_FEW = 1000
"""Number of requests below which the 99th percentile varies by more than about 15 %: it did by 14.5 % for
1,000 independent lognormal values."""
_BACKLOG = 0.05
"""Share of requests in the queue at the last arrival from which a warning says so (our choice)."""


def requests_of(options: StreamOptions, number: int = 0, *, root: Path | None) -> RecordedTrace:
    """Return the requests of a replication of a stream, drawn or of its trace, and how many were left out;
    ``root`` is the folder of the scenario. Raises InputError."""
    if options.trace is None:
        return RecordedTrace(drawn(options, replication=number), "", 0)
    draw = np.random.default_rng(np.random.SeedSequence(options.seed, spawn_key=(number,)))
    return read_trace(options, root=root, draw=draw)


def proposing(scenario: LoadedScenario) -> dict[str, Any]:
    """Return the keys of the workload that say how tokens are proposed."""
    asked = scenario.document.data["workload"].get("speculation")
    return {} if asked is None else {"speculation": asked}


def _refuse_stores(scenario: LoadedScenario) -> None:
    """Raise InputError for a connector, whose store a stream would leave out without a word."""
    cache = getattr(scenario.scenario.strategy, "kv_cache", None)
    if getattr(cache, "connector", None) is not None:
        text = (
            "a stream has no store of prefixes beyond the memory of the GPU yet; remove it, or simulate one "
            "batch that finds its prefix there with simoffload run"
        )
        key = ("strategy", "kv_cache", "connector")
        raise InputError([scenario.document.problem(key, text, at_key=True)])


class StreamSimulation:
    """A StreamSimulation serves the stream of a scenario, with a common table of steps for all replications.

    ``recorded`` are requests of a real engine, which are served instead of those of the stream, and the batch
    sizes of which it had CUDA graphs. Raises InputError for a scenario without a stream, and where the engine
    has no room for requests.
    """

    @limited
    def __init__(
        self,
        scenario: LoadedScenario,
        *,
        exact: bool = False,
        recorded: tuple[Requests, tuple[int, ...]] | None = None,
    ) -> None:
        keep(scenario.scenario.engine.limits)
        now_doing("planning the stream")
        options = scenario.scenario.stream
        if options is None:
            text = (
                "the scenario has no section stream, which says what requests arrive (docs/streams.md); "
                "serving/llama-3.1-8b-chat has one"
            )
            raise InputError([scenario.document.problem((), text)])
        _refuse_stores(scenario)
        self.scenario, self.options = scenario, options
        self.failed, self.assumed = 0, False
        strategy = scenario.scenario.strategy
        self.gpus = max(1, strategy.gpus // max(1, strategy.replicas))
        """Number of GPUs of a replica."""
        self.limits, self.planned = self._limits(scenario, recorded=recorded is not None)
        self._recorded = None
        if recorded is not None:
            self._recorded, graphs = recorded
            self.limits = self.limits._replace(graphs=graphs)
        self.steps = SimulatedSteps(self.planned)
        self._saved = SavedSteps(key_of(self.planned, without=("stream", "name", "description")))
        saved = {} if exact else self._saved.read()
        sizes, each = self.limits.graphs, self.steps.each
        self.table = StepTable(self.steps, sizes=sizes, exact=exact, each=each, saved=saved)
        self.checkpoints = StreamCheckpoints(f"{key_of(scenario)}{'-exact' * exact}")

    def _limits(self, scenario: LoadedScenario, *, recorded: bool) -> tuple[ServingLimits, LoadedScenario]:
        """Return the limits of the engine, and the scenario with a batch that fills a step; blocks that a
        real engine had are not compared with the memory."""
        options, strategy = self.options, scenario.scenario.strategy
        found = getattr(scenario.plan(), "serving_limits", None)
        if found is not None:
            most, asked = options.max_num_seqs or found.sequences, scenario
            tokens = max(options.max_num_batched_tokens or found.tokens, most)
            # A stream may have fewer blocks than that batch needs.
            lifted = [Edit(("strategy", "kv_blocks"), None)] if getattr(strategy, "kv_blocks", None) else []
            for sequences in (most >> half for half in range(most.bit_length())):
                work = {"kind": "inference", "batch_size": sequences, "output_length": 1} | proposing(asked)
                work["prompt_length"] = -(-tokens // sequences)
                scenario = asked.edited(Edit(("workload",), work), *lifted)
                found = getattr(scenario.plan(), "serving_limits", None)
                if found is None or found.blocks or options.max_num_seqs is not None:
                    break
                # Their states leave no memory for blocks; vLLM, which has both in pages, runs fewer at once.
            found = found and found._replace(sequences=sequences)
        stated = (options.max_num_batched_tokens, options.max_num_seqs, options.kv_blocks)
        if found is None and None in stated:
            text = (
                f"{strategy.traits.title or strategy.kind} is no engine with limits of its own: state "
                "max_num_batched_tokens, max_num_seqs and kv_blocks, or set strategy.kind to vllm, which has "
                "them"
            )
            raise self._refusal(text)
        self.assumed = found is None
        usual = found or ServingLimits(0, 0, 0, 16, ())
        size = options.block_size or usual.block_size
        usual_blocks = getattr(strategy, "kv_blocks", None) or usual.blocks
        limits = ServingLimits(
            stated[0] or usual.tokens,
            stated[1] or usual.sequences,
            stated[2] or usual_blocks * usual.block_size // size,
            size,
            usual.graphs,
            usual.groups._replace(step=stated[0] or usual.tokens),
            None if usual.room is None else usual.room * usual.block_size // size,
        )
        if limits.sequences > limits.tokens and options.scheduler == "vllm":
            text = (
                f"max_num_seqs {limits.sequences} is above max_num_batched_tokens {limits.tokens}; lower it"
            )
            raise self._refusal(text)
        if not limits.blocks:
            text = (
                "no block of the key-value cache fits beside the weights and what a step of "
                f"{limits.tokens} tokens and {limits.sequences} sequences needs; lower "
                "max_num_batched_tokens or max_num_seqs, or put more of the weights elsewhere (simoffload "
                "fit has the memory)"
            )
            raise self._refusal(text, CapacityError)
        if limits.room is not None and limits.blocks > limits.room and not recorded:
            key = ("stream" if options.kv_blocks else "strategy", "kv_blocks")
            text = (
                f"{limits.blocks:,} blocks of the key-value cache do not fit: each GPU has memory for "
                f"{limits.room:,} beside the weights and what a step of {limits.tokens} tokens and "
                f"{limits.sequences} sequences needs; lower kv_blocks, or leave it out"
            )
            raise CapacityError([scenario.document.problem(key, text)])
        return limits, scenario

    def _refusal(self, text: str, kind: type[InputError] = InputError) -> InputError:
        return kind([self.scenario.document.problem(("stream",), text, at_key=True)])

    @property
    def replications(self) -> int:
        """Number of replications: one of recorded requests, in which nothing is random."""
        return 1 if self._is_recorded(self.options) else self.options.replications

    def _is_recorded(self, options: StreamOptions) -> bool:
        return self._recorded is not None or (options.trace is not None and options.arrivals is None)

    @limited
    def run(
        self, options: StreamOptions, number: int, *, chunks: float = 1.0, decoding: float = 1.0
    ) -> StreamMeasures:
        """Simulate a replication of the stream, with steps that take ``chunks`` times as long if they have
        chunks of prompts, and else ``decoding`` times."""
        keep(self.scenario.scenario.engine.limits)
        now_doing("simulating requests")
        requests = self._requests(options, number)
        limits = self.limits
        scheduler: Scheduler = StaticBatches(batch_size=limits.sequences)
        if options.scheduler == "vllm":
            scheduler = VllmScheduler(
                max_num_batched_tokens=limits.tokens,
                max_num_seqs=limits.sequences,
                each=self.steps.each,
            )
        caching = options.enable_prefix_caching and options.scheduler == "vllm"
        cache = RadixCache(limits.block_size) if caching else None
        state = ReplicaState(
            blocks=limits.blocks,
            block_size=limits.block_size,
            groups=limits.groups.caching() if caching else limits.groups,
            cache=cache,
            null_blocks=int(options.scheduler == "vllm"),
        )
        replica = Replica(
            scheduler=scheduler,
            state=state,
            times=self.table if chunks == decoding == 1 else Scaled(self.table, chunks, decoding),
            async_scheduling=options.async_scheduling and options.scheduler == "vllm",
        )
        part = f"{options.model_dump_json()} {number} {chunks} {decoding} {requests.digest}"
        known = self.checkpoints.load(part)
        if known is not None:
            replica.restore(known[0], requests.runs)
            self._restore(*known[1:])
        else:
            try:
                replica.expect(requests, after=None if requests.is_open else requests.after)
            except InputError as error:
                raise self._placed(error) from None
        with stage(len(requests.prompt)) as serving:
            for _ in turns(replica):
                serving.reach(replica.done)
                self.checkpoints.note(part, self._state(replica), ended=replica.until == inf)
        if not self.table.as_they_are:
            self._saved.write(self.table.known)
        served = replica.served
        skip = options.warm_up
        if skip is None and self._is_recorded(options):
            skip = 0
        order = np.argsort(served.queued, kind="stable")
        first = mser(served.ttft[order]) if skip is None else int(skip * len(order))
        until = served.scheduled[requests.after == -1]
        if (next_user := requests.after == AFTER_ANY).any():
            until = (served.queued - requests.arrival)[next_user]
        return StreamMeasures(served, limits=options.slo, skip=first, until=float(until.max(initial=0.0)))

    def _state(self, replica: Replica) -> tuple[Any, ...]:
        """Return how far a replication is, with the steps that were needed up to there."""
        table = self.table
        return replica, table.known, table.worst, table.as_they_are

    def _restore(self, known: dict[Point, StepTime], worst: float, as_they_are: int) -> None:
        table = self.table
        table.known |= known
        table.worst, table.as_they_are = max(worst, table.worst), max(as_they_are, table.as_they_are)

    def _requests(self, options: StreamOptions, number: int) -> Requests:
        if self._recorded is not None:
            return self._recorded.first(options.num_prompts)
        try:
            found = requests_of(options, number, root=self.scenario.document.root)
        except InputError as error:
            raise self._placed(error) from None
        self.failed = found.failed
        return found.requests

    def _placed(self, error: InputError) -> InputError:
        document = self.scenario.document
        return InputError(
            one if one.path else document.problem(tuple(one.key.split(".")), one.message, at_key=True)
            for one in error.problems
        )

    def users(self, options: StreamOptions) -> int:
        """Return how many users at most send requests at once, of as many as the stream has."""
        return int((self._requests(options, 0).after == -1).sum())

    def notes(self, measures: Sequence[StreamMeasures]) -> Iterator[str]:
        """Yield what a reader must know to judge the numbers."""
        least = min(one.number for one in measures)
        if least < _FEW:
            yield (
                f"{plural(least, 'request')} {'is' if least == 1 else 'are'} too few for p99, which "
                f"differs by some 15 % from stream to stream even with {_FEW}; raise num_prompts"
            )
        strategy = self.scenario.scenario.strategy
        name = strategy.traits.title or strategy.kind
        if self.assumed and self.options.scheduler == "vllm":
            yield (
                f"{name} has no scheduler of its own, and vLLM's is assumed; with stream.scheduler: static "
                "it computes one batch after the other"
            )
        if self.failed:
            yield f"{self.failed} recorded requests failed or were of a warm-up, and are left out"
        model, served = self.scenario.model, measures[0].served
        most = model.max_position_embeddings
        if most is not None and (long := int((served.prompt + served.output > most).sum())):
            yield (
                f"{plural(long, 'request')} of the first replication {'has' if long == 1 else 'have'} more "
                f"than the {most} tokens that {model.name} was made for, and vLLM refuses such prompts; "
                "lower max of prompt and output, or max_model_len of conversations"
            )
        share = max(float((one.served.preemptions > 0).mean()) for one in measures)
        if share > 0.05:
            yield (
                f"{share:.0%} of the requests are preempted: repeated real runs then differ by 14 to 22 %, "
                "and more KV blocks help"
            )
        left, growth = max(one.backlog for one in measures)
        if left > _BACKLOG and not isinstance(self.options.arrivals, Closed):
            yield (
                f"{percent(left)} of the requests wait when the last one arrives: the stated load is more "
                f"than the replica serves, the queue grows by {format_number(growth)} requests/s, and a "
                "longer stream has longer times"
            )
