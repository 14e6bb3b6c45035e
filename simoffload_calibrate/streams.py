"""Recorded streams of requests of vLLM are served again by its rules, with simulated times of steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simoffload.documents import Edit
from simoffload.planning.streams import error_interval, step_errors, stream_passes
from simoffload.scenario import LoadedScenario
from simoffload.serving.prefixes import RadixCache
from simoffload.serving.replica import Replica, Served, StepTimes, serve
from simoffload.serving.requests import Requests
from simoffload.serving.scheduler import ReplicaState, VllmScheduler
from simoffload.serving.simulate import StreamSimulation
from simoffload.serving.steps import Scaled, SimulatedSteps, StepTable
from simoffload_calibrate.records import EngineFacts, ServedRequests, latencies


def served_latencies(served: Served) -> dict[str, float]:
    """Return the mean and percentiles of TTFT and TPOT of a simulated stream [s]."""
    return latencies({"ttft": served.ttft, "tpot": served.tpot})


class RecordedStream(NamedTuple):
    """The requests of a stream, and the limits of the engine that served them."""

    requests: Requests
    blocks: int
    tokens: int
    """Most tokens of a step."""
    sequences: int
    """Most sequences of a step."""
    graphs: tuple[int, ...]
    """Batch sizes of which CUDA graphs were captured."""
    caches: bool
    """Whether prefixes were cached."""
    block_size: int = 16
    async_scheduling: bool = True

    @classmethod
    def of(cls, requests: ServedRequests, engine: EngineFacts) -> RecordedStream:
        """Return the stream of a record."""
        number = len(requests.arrival)
        return cls(
            requests=Requests(
                np.array(requests.arrival),
                np.array(requests.prompt),
                np.array(requests.output),
                list(requests.runs) or [None] * number,
                np.array(requests.after or [-1] * number),
            ),
            blocks=engine.kv_blocks,
            tokens=engine.max_num_batched_tokens,
            sequences=engine.max_num_seqs,
            graphs=engine.cudagraph_capture_sizes,
            caches=engine.enable_prefix_caching,
            block_size=engine.block_size,
            async_scheduling=engine.async_scheduling,
        )

    def replay(self, times: StepTimes) -> Served:
        """Serve the stream by the rules of vLLM, with given times of steps."""
        cache = RadixCache(self.block_size) if self.caches else None
        replica = Replica(
            scheduler=VllmScheduler(max_num_batched_tokens=self.tokens, max_num_seqs=self.sequences),
            state=ReplicaState(blocks=self.blocks, block_size=self.block_size, cache=cache),
            times=times,
            async_scheduling=self.async_scheduling,
        )
        requests = self.requests
        return serve(replica, requests, after=None if requests.is_open else requests.after)


class PredictedStream(NamedTuple):
    """A recorded stream as it is predicted."""

    served: Served
    ends: tuple[Served, Served]
    """The stream with steps as short, and as long, as in one of ten real runs."""

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The ends [s] between which 80 % of real streams are expected, by figure of ``latencies``."""
        as_is, *others = map(served_latencies, (self.served, *self.ends))
        return {
            name: error_interval(value, value, [one[name] for one in others], 0.0)
            for name, value in as_is.items()
        }


class SimulatedEngine:
    """An engine whose steps are those of a scenario's plan, with a table that all its streams share."""

    def __init__(self, scenario: LoadedScenario, graphs: tuple[int, ...]) -> None:
        self._scenario, self._steps = scenario, SimulatedSteps(scenario)
        self.table = StepTable(self._steps, sizes=graphs)

    def predict(self, stream: RecordedStream) -> PredictedStream:
        """Serve a stream as it is, and with shorter and longer steps."""
        served = stream.replay(self.table)
        passes = stream_passes(self._scenario, self._steps, served)
        assert passes is not None
        chunks, decoding = step_errors(passes)
        short, long = ((chunks**sign, decoding**sign) for sign in (-1, 1))
        ends = stream.replay(Scaled(self.table, *short)), stream.replay(Scaled(self.table, *long))
        return PredictedStream(served, ends)


_ANY_REQUEST: dict[str, Any] = {
    "arrivals": {"kind": "constant", "request_rate": 1},
    "prompt": {"kind": "fixed", "tokens": 1},
    "output": {"kind": "fixed", "tokens": 1},
}


def planned_engine(scenario: LoadedScenario, engine: EngineFacts) -> tuple[SimulatedEngine, int]:
    """Return an engine with the limits of a recorded one, and the number of KV blocks that its plan has room
    for. Raises InputError for a plan that has no limits, or no room."""
    limits = {key: getattr(engine, key) for key in ("max_num_seqs", "max_num_batched_tokens", "block_size")}
    simulation = StreamSimulation(scenario.edited(Edit(("stream",), {**_ANY_REQUEST, **limits})))
    planned = simulation.planned
    return SimulatedEngine(planned, engine.cudagraph_capture_sizes), simulation.limits.blocks
