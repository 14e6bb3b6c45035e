"""Times of steps of a stream: simulated as they are, and from the table."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from simoffload.documents import parse_yaml, yaml_text
from simoffload.extensions.serving.replica import Replica, Served, StepTime, StepTimes, serve
from simoffload.extensions.serving.scheduler import (
    ReplicaState,
    ScheduledWork,
    Scheduler,
    StaticBatches,
    VllmScheduler,
)
from simoffload.extensions.serving.steps import BOUND, SimulatedSteps, StepTable, _mixture
from simoffload.models import Sequences
from simoffload.scenario import LoadedScenario, read_scenario, resolve
from simoffload.simulation import simulate
from tests.serving.streams import Stream, poisson, stream

_SCENARIO = """\
name: served
model: {model}
platform: h100-1gpu-vm
workload: {{kind: inference, batch_size: {batch}, prompt_length: 300, output_length: 24}}
strategy: {strategy}
engine: {{decode_extrapolation: "off"}}
"""
_COMPILED = "{kind: vllm}"
_STRATEGIES = (_COMPILED, "{kind: transformers}", "{kind: vllm, cpu_offload_gb: 8}")


def scenario(strategy: str = _COMPILED, *, batch: int = 1, model: str = "llama-3.1-8b") -> LoadedScenario:
    """Return a scenario of so many prompts of 300 tokens and outputs of 24."""
    text = _SCENARIO.format(model=model, batch=batch, strategy=strategy)
    return resolve(parse_yaml(text, name="served.yaml"))


def served(requests: Stream, table: StepTimes, scheduler: Scheduler, *, ahead: bool = False) -> Served:
    """Serve a stream with the times of a table."""
    replica = Replica(
        scheduler=scheduler, state=ReplicaState(blocks=10**6), times=table, async_scheduling=ahead
    )
    return serve(replica, requests)


@pytest.mark.parametrize("strategy", _STRATEGIES)
@pytest.mark.parametrize("batch", [1, 5])
def test_requests_at_once_equal_the_batch(strategy: str, batch: int) -> None:
    one = scenario(strategy, batch=batch)
    result = simulate(one).metrics()
    # vLLM's tokens of a prefill are taken when the next step is prepared, which is no part of its own step
    alone = {**one.document.data, "workload": {**one.document.data["workload"], "output_length": 1}}
    ttft = simulate(resolve(parse_yaml(yaml_text(alone), name="alone.yaml"))).metrics()["ttft_s"]
    assert ttft is not None
    requests = stream([(0.0, 300, 24)] * batch)
    schedulers = {"static": StaticBatches(batch_size=batch)}
    if batch == 1:
        schedulers["vllm"] = VllmScheduler(max_num_batched_tokens=8192, max_num_seqs=64)
    for name, scheduler in schedulers.items():
        for ahead in {False, name == "vllm"}:
            found = served(requests, StepTable(SimulatedSteps(one), exact=True), scheduler, ahead=ahead)
            assert {_ps(value) for value in found.ttft} == {_ps(ttft)}
            total = ttft + 23 * result["tpot_s"]
            assert {_ps(value) for value in found.finished} == {_ps(total)}


def _ps(seconds: float | None) -> int:
    assert seconds is not None
    return round(seconds * 1e12)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_a_table_is_within_its_bound(model: str) -> None:
    # Above 512 tokens the host launches kernels one by one: a mixture takes three times as long at once.
    # Groups of equal contexts cost some 10 us each in a step that is simulated as it is.
    evaluate = SimulatedSteps(scenario(model=model))
    requests = poisson(60, 12.0, prompt=(300, 900), output=(20, 60))
    scheduler = VllmScheduler(max_num_batched_tokens=2048, max_num_seqs=32)
    exact, table = StepTable(evaluate, exact=True), StepTable(evaluate)
    errors = []

    class Both:
        def of(self, work: ScheduledWork, state: ReplicaState) -> StepTime:
            right = exact.of(work, state)
            errors.append(abs(table.of(work, state).time / right.time - 1))
            return right

    served(requests, Both(), scheduler)
    assert 0 < table.worst <= BOUND
    assert table.evaluations < exact.evaluations
    assert np.mean(errors) < BOUND
    assert max(errors) < 2 * BOUND


def test_cells_follow_a_ridge_and_a_cliff() -> None:
    calls = []

    def evaluate(batch: tuple[Sequences, ...]) -> StepTime:
        tokens = sum(one.number * one.new_tokens for one in batch)
        calls.append(tokens)
        time = max(1.0, tokens / 300) + (3.0 if tokens > 700 else 0.0)
        return StepTime(time, time / 2, time)

    table = StepTable(evaluate)
    for tokens in (*range(1, 1025, 13), 300, 301, 700, 701):
        right = max(1.0, tokens / 300) + (3.0 if tokens > 700 else 0.0)
        found = table._interpolated((tokens, 0, 0, tokens * tokens // 2))
        assert found.time == pytest.approx(right, rel=2 * BOUND)
        assert found.host == found.time / 2
    assert len(calls) == table.evaluations < 400


def test_the_later_of_host_and_gpu_needs_few_cells() -> None:
    # A GPU that begins after 1.7 ms and works longer than the host from some contexts and tokens on.
    def evaluate(batch: tuple[Sequences, ...]) -> StepTime:
        tokens = sum(one.number * one.new_tokens for one in batch)
        busy = 2 + tokens**0.9 / 200 + 2e-5 * sum(one.number * one.context for one in batch)
        return StepTime(max(9.3, busy + 1.7), 9.0, busy)

    draw = np.random.default_rng(1)
    table, errors = StepTable(evaluate), []
    for _ in range(1000):
        sequences, chunk = int(draw.integers(0, 60)), int(draw.integers(1, 3000))
        beyond = int(sequences * draw.integers(0, 2000))
        point = sequences + chunk, sequences, beyond, chunk * int(draw.integers(chunk, chunk + 4000)) // 2
        right = evaluate(_mixture(point))
        found = table._interpolated(point)
        errors.append(max(abs(a - b) for a, b in zip(found[:3], right[:3], strict=True)) / right.time)
    assert np.mean(errors) < BOUND / 4
    assert np.quantile(errors, 0.99) < 2 * BOUND
    assert table.evaluations < 700


def test_a_captured_size_is_the_time_of_fewer_tokens() -> None:
    def evaluate(batch: tuple[Sequences, ...]) -> StepTime:
        tokens = sum(one.number * one.new_tokens for one in batch)
        contexts = sum(one.number * one.context for one in batch)
        return StepTime(tokens + contexts * 1e-3, 0.0, 0.0)

    table = StepTable(evaluate, sizes=(1, 2, 4, 8))

    def decoding(sequences: int, beyond: int) -> StepTime:
        work = ScheduledWork((), 0, 0.0, sequences, beyond + 2 * sequences, 50)
        return table.of(work, ReplicaState(blocks=100))

    found = decoding(5, 100)
    assert found.time == pytest.approx(8 + 1e-3 * (100 + 2 * 8))
    assert found.growth == pytest.approx(5e-3)
    assert math.isclose(decoding(9, 100).time, 9 + 1e-3 * (100 + 18))


@pytest.mark.parametrize(
    ("platform", "tokens", "sequences", "graphs"),
    [("h100-1gpu-vm", 8192, 1024, 51), ("rtx-4090-desktop", 2048, 256, 51), ("dgx-h200", 8192, 1024, 51)],
)
def test_limits_are_those_of_the_card(platform: str, tokens: int, sequences: int, graphs: int) -> None:
    text = _SCENARIO.format(model="llama-3.1-8b", batch=1, strategy=_COMPILED)
    plan = resolve(parse_yaml(text.replace("h100-1gpu-vm", platform), name="served.yaml")).plan()
    limits = plan.serving_limits
    assert limits is not None
    assert (limits.tokens, limits.sequences, len(limits.graphs)) == (tokens, sequences, graphs)
    assert scenario("{kind: transformers}").plan().serving_limits is None


@pytest.mark.parametrize(("model", "blocks"), [("llama-3.1-8b", 28123), ("qwen3-14b", 17167)])
def test_blocks_are_as_many_as_recorded(model: str, blocks: int) -> None:
    # vLLM 0.25.1 on one H100 with gpu_memory_utilization 0.9 (docs/measurements/h100-2026-11-28).
    served = "{kind: vllm, gpu_memory_utilization: 0.9}"
    for batch in (1, 1024):
        limits = scenario(served, model=model, batch=batch).plan().serving_limits
        assert limits is not None
        assert limits.blocks == pytest.approx(blocks, rel=0.03)


def proposing(count: int, share: float) -> StepTable:
    """Return the table of steps that verify so many tokens which cost nothing; a share is accepted."""
    asked = f"workload.speculation={{method: ngram, num_speculative_tokens: {count}, acceptance: {share}}}"
    steps = SimulatedSteps(read_scenario("serving/llama-3.1-8b-chat", overrides=[asked]))
    return StepTable(steps, each=steps.each)


def of_sequences(table: StepTable, chunk: int = 0, sequences: int = 8, context: int = 1000) -> float:
    """Return the time of a step of so many generating sequences, with a chunk of a prompt or without."""
    chunks = ((9, chunk),) if chunk else ()
    contexts = sequences * context
    work = ScheduledWork(chunks, chunk, chunk * chunk / 2, sequences, contexts, 1)
    return table.of(work, ReplicaState(blocks=10_000)).time


def test_a_token_of_a_step_that_yields_several_has_its_part_of_the_time() -> None:
    """With all of three tokens accepted a step yields four, with none of them one."""
    vain, right = proposing(3, 0), proposing(3, 1)
    assert of_sequences(right) == pytest.approx(of_sequences(vain) / 4)


def test_a_chunk_makes_a_step_longer_by_as_much_whatever_is_accepted() -> None:
    vain, right = proposing(3, 0), proposing(3, 1)
    longer = of_sequences(vain, 512) - of_sequences(vain)
    assert longer > 0
    assert of_sequences(right, 512) - of_sequences(right) == pytest.approx(longer, rel=0.01)


def test_a_step_leaves_prompts_what_proposed_tokens_do_not_take() -> None:
    """Of 64 tokens five sequences that generate leave 59, and 44 if each verifies three more."""
    for each, left in ((1, 59), (4, 44)):
        scheduler = VllmScheduler(max_num_batched_tokens=64, max_num_seqs=8, each=each)
        state = ReplicaState(blocks=1000)
        first = state.add([4] * 5 + [200], [50] * 5 + [1])
        for request in range(first, first + 5):
            state.arrive(request, 0.0)
        work = scheduler.admit(state, 0.0)
        assert work is not None
        state.advance(work, 1)
        state.arrive(first + 5, 0.0)
        work = scheduler.admit(state, 0.0)
        assert work is not None
        assert work.chunks == ((first + 5, left),)


_HYBRID = Path(__file__).parents[2] / "docs/measurements/h200-2026-11-29f/vllm-hybrid.json.gz"


@pytest.mark.parametrize(
    ("case", "model"), [("qwen", "qwen3.5-35b-a3b"), ("nemotron", "nemotron-3-nano-30b-a3b")]
)
def test_blocks_beside_recurrent_layers_are_those_recorded(case: str, model: str) -> None:
    """vLLM 0.25.1 on one H200 (docs/measurements/hybrid-models.md): tokens of a block, groups, and blocks."""
    records = json.loads(gzip.decompress(_HYBRID.read_bytes()))["records"]
    cache = next(one for one in records if one["case"] == case)["cache"]
    kinds = Counter(one["kind"] for one in cache["groups"])
    served = "{kind: vllm, gpu_memory_utilization: 0.9, max_cudagraph_capture_size: 256}"
    text = _SCENARIO.format(model=model, batch=256, strategy=served).replace("h100", "h200")
    limits = resolve(parse_yaml(text, name="served.yaml")).plan().serving_limits
    assert limits is not None
    assert limits.groups.full == kinds["FullAttentionSpec"]
    assert limits.groups.sliding == kinds["MambaSpec"]
    assert {limits.groups.size} == {
        one["block_size"] for one in cache["groups"] if one["kind"] == "FullAttentionSpec"
    }
    assert limits.blocks == pytest.approx(cache["num_blocks"], rel=0.02)
