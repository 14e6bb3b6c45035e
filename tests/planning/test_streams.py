"""Streams of scenarios: from the file to the answer."""

from __future__ import annotations

import json
import re
from math import exp, hypot, log
from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.documents import Edit, parse_yaml
from simoffload.errors import InputError, WorkLimitError
from simoffload.extensions.serving.answers import ReplicatedMean
from simoffload.extensions.serving.report import stream_document
from simoffload.extensions.serving.simulate import StreamSimulation
from simoffload.extensions.serving.streams import (
    RateTrial,
    StreamResult,
    capacity_by_chance,
    chat_overrides,
    error_interval,
    with_requests_named,
)
from simoffload.hardware import P90
from simoffload.planning.confidence import confidence
from simoffload.planning.question import question
from simoffload.scenario import read_source, resolve

TEXT = """\
name: a stream
model: llama-3.1-8b
platform: h100-1gpu-vm
strategy: {kind: vllm}
stream:
  num_prompts: 60
  replications: 2
  max_num_seqs: 32
  arrivals: {kind: poisson, request_rate: 8}
  prompt: {kind: fixed, tokens: 600}
  output: {kind: fixed, tokens: 40}
"""


def stream(*overrides: str, **options: Any) -> StreamResult:
    return so.stream(resolve(parse_yaml(TEXT, name="stream.yaml"), overrides=overrides), **options)


@pytest.fixture(scope="module")
def usual() -> StreamResult:
    return stream()


def test_a_stream_has_latencies_and_intervals(usual: StreamResult) -> None:
    assert len(usual.measures) == 2
    ttft, tpot = (usual.estimates[f"{name}_mean_s"] for name in ("ttft", "tpot"))
    assert 0.01 < ttft.value < 0.2
    assert 0.005 < tpot.value < 0.02
    assert ttft.low < ttft.value < ttft.high
    assert usual.limits.tokens == 8192
    assert usual.limits.sequences == 32
    assert usual.limits.blocks * 16 > 300_000
    assert any("too few for p99" in note for note in usual.notes)
    assert 0 < usual.worst <= 0.005
    data = usual.to_dict()
    assert data["metrics"]["ttft_mean_s"]["value"] == ttft.value
    json.dumps(data, allow_nan=False)


def test_intervals_are_within_what_a_metric_can_be() -> None:
    # A queue of few requests: the time to the first token differs by more than its mean.
    found = stream(
        "stream.num_prompts=30", "stream.max_num_seqs=2", "stream.arrivals.request_rate=3"
    ).to_dict()
    ends = [one for one in found["metrics"].values() if one["low"] is not None]
    assert min(one["low"] for one in ends) == 0
    assert all(one["low"] <= one["value"] <= one["high"] for one in ends)
    assert found["metrics"]["attained"]["high"] == found["intervals"]["attained"][1] == 1


def test_costs_and_load_agree_with_the_rate_of_users() -> None:
    users = "stream.arrivals={kind: closed, users: 8}"
    found = stream(users, "stream.num_prompts=400", slo=["tpot=1s"])
    values = {name: one.value for name, one in found.estimates.items()}
    assert values["requests_per_s"] == pytest.approx(8 / values["e2el_mean_s"], rel=0.03)
    assert values["running"] + values["waiting"] == pytest.approx(8, rel=1e-3)
    assert values["goodput_per_s"] == values["requests_per_s"]
    priced = stream(users, "stream.num_prompts=400").priced()
    assert priced["energy_per_token_j"] == pytest.approx(
        priced["power_w"] / values["output_tokens_per_s"], rel=0.01
    )
    assert next(one for one in found.trials if one.load == 8).goodput.value == values["goodput_per_s"]


def test_the_same_seed_has_the_same_answer(usual: StreamResult) -> None:
    assert stream().to_dict() == usual.to_dict()
    assert stream("stream.seed=1").estimates["ttft_mean_s"] != usual.estimates["ttft_mean_s"]


def test_exact_steps_hardly_differ() -> None:
    exact = stream(
        "stream.num_prompts=20", "stream.replications=1", "stream.output.tokens=8", exact_steps=True
    )
    table = stream("stream.num_prompts=20", "stream.replications=1", "stream.output.tokens=8")
    for name in ("ttft_mean_s", "tpot_mean_s"):
        assert exact.estimates[name].value == pytest.approx(table.estimates[name].value, rel=0.01)
    assert exact.evaluations > 20


def test_the_largest_rate_within_limits() -> None:
    found = stream("stream.replications=1", slo=["tpot=12ms", "attain=0.8"])
    assert found.best is not None
    above = next(one for one in found.trials if one.load > found.best.load)
    assert above.load / found.best.load <= 1.021
    assert above.attained.value < 0.8 <= found.best.attained.value
    assert above.binds == "tpot"
    loads = [one.load for one in found.trials]
    assert loads == sorted(loads)
    first = next(one for one in found.trials if one.load == found.options.arrivals.request_rate)
    assert first.metrics == found.estimates
    assert above.metrics["tpot_p99_s"].value > found.best.metrics["tpot_p99_s"].value
    tried = found.to_dict()["trials"][loads.index(above.load)]
    assert tried["metrics"]["tpot_p99_s"]["value"] == above.metrics["tpot_p99_s"].value
    none = stream("stream.replications=1", "stream.num_prompts=3", slo="ttft=1us")
    assert none.best is None
    assert len(none.trials) > 15


def test_the_number_of_users_within_limits() -> None:
    closed = "stream.arrivals={kind: closed, users: 2, think_time: 100 ms}"
    found = stream("stream.replications=1", closed, slo="tpot=11ms")
    assert found.unit == "users"
    assert found.best is not None
    assert found.best.load == round(found.best.load)
    above = next(one for one in found.trials if one.load > found.best.load)
    assert above.load == found.best.load + 1
    # 60 requests in conversations of three turns have twenty users at most.
    turns = "stream.conversations={turns: {kind: fixed, tokens: 3}, think_time: 1 s}"
    most = stream("stream.replications=1", closed, turns, slo="tpot=1s")
    assert most.best is not None
    assert most.best.load == 20
    assert stream_document(most).verdicts[0].startswith("At least 20 users")
    assert stream_document(found).verdicts[0].startswith(f"Up to {found.best.load:.0f} users")


def test_conversations_find_what_was_written_before() -> None:
    turns = "stream.conversations={turns: {kind: fixed, tokens: 3}, think_time: 1 s}"
    found = stream(turns, "stream.replications=1", "stream.warm_up=0")
    assert found.estimates["cached"].value == pytest.approx(0.55, abs=0.1)
    without = stream(turns, "stream.replications=1", "stream.warm_up=0", "stream.enable_prefix_caching=false")
    assert without.estimates["cached"].value == 0
    assert without.estimates["ttft_mean_s"].value > found.estimates["ttft_mean_s"].value


def test_more_load_than_is_served_is_said() -> None:
    found = stream("stream.arrivals.request_rate=500", "stream.num_prompts=600", "stream.max_num_seqs=4")
    assert any("the queue grows by" in note for note in found.notes)


def test_a_shipped_trace_in_static_batches() -> None:
    scenario = resolve(
        parse_yaml(
            TEXT.partition("stream:")[0]
            + "stream:\n  num_prompts: 30\n  scheduler: static\n  max_num_seqs: 8\n"
            + "  trace: {file: azure-2023-conversation-2000.csv}\n",
            name="stream.yaml",
        )
    )
    found = so.stream(scenario)
    assert len(found.measures) == 1
    assert found.measures[0].number == 30
    assert found.estimates["ttft_mean_s"].low != found.estimates["ttft_mean_s"].low  # one replication


OFFLOADED = [
    ("opt-30b", "{kind: deepspeed}", "static"),
    ("llama-3.1-70b", "{kind: vllm, cpu_offload_gb: 90}", "vllm"),
]


@pytest.mark.parametrize(("model", "strategy", "scheduler"), OFFLOADED)
def test_batches_hide_that_weights_are_read_from_host_memory(
    model: str, strategy: str, scheduler: str
) -> None:
    # Each step moves all weights once, for one sequence as for sixteen. A static batch of one comes first.
    all_at_once = (
        f"model={model}",
        f"strategy={strategy}",
        f"stream.scheduler={scheduler}",
        "stream.arrivals={kind: constant, request_rate: 100000}",
        "stream.prompt.tokens=16",
        "stream.output.tokens=12",
        "stream.num_prompts=97",
        "stream.replications=1",
        "stream.warm_up=0",
        "stream.kv_blocks=4000",
        "stream.max_num_batched_tokens=2048",
    )
    one, many = (stream(*all_at_once, f"stream.max_num_seqs={size}") for size in (1, 16))
    rates = [found.estimates["output_tokens_per_s"].value for found in (one, many)]
    steps = [found.estimates["itl_p50_s"].value for found in (one, many)]
    assert rates[1] > 12 * rates[0]
    assert steps[1] < 1.05 * steps[0]
    assert not any("is assumed" in note for note in one.notes)


def test_few_requests_and_long_ones_are_told() -> None:
    one = ["stream.num_prompts=1", "stream.replications=1", "stream.warm_up=0"]
    found = stream(*one, slo="ttft=1s")
    assert found.notes[0].startswith("1 request is too few for p99")
    verdict = stream_document(found).verdicts[0]
    assert verdict.startswith("At least ")
    assert "so few requests allow no larger load, so raise num_prompts" in verdict
    (_, note) = stream(*one, "stream.prompt.tokens=131072").notes
    assert note.startswith(
        "1 request of the first replication has more than the 131072 tokens that llama-3.1-8b"
    )


def test_a_program_without_a_scheduler_says_so() -> None:
    stated = ["stream.max_num_batched_tokens=512", "stream.max_num_seqs=4", "stream.kv_blocks=4000"]
    found = stream("strategy={kind: deepspeed}", *stated, "stream.num_prompts=4")
    assert any("DeepSpeed ZeRO has no scheduler of its own" in note for note in found.notes)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["stream.kv_blocks=1000000"], r"stream\.kv_blocks: 1,000,000 blocks .* has memory for \d\d,\d{3} "),
        (["strategy.kv_blocks=1000000"], r"strategy\.kv_blocks: 1,000,000 blocks"),
        (["stream.kv_blocks=500000", "stream.block_size=32"], "500,000 blocks"),
        (["stream.max_num_seqs=100000"], "no block of the key-value cache fits"),
    ],
)
def test_a_cache_without_memory_does_not_fit(
    overrides: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stream.yaml").write_text(TEXT)
    changes = [part for one in overrides for part in ("--set", one)]
    assert main(["stream", str(tmp_path / "stream.yaml"), *changes]) == 3
    assert re.search(message, capsys.readouterr().err)


def test_all_blocks_with_memory_are_used(usual: StreamResult) -> None:
    room = usual.limits.room
    assert usual.limits.blocks == room
    assert stream(f"stream.kv_blocks={room}", "stream.num_prompts=5").limits.blocks == room


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["stream.arrivals.request_rate=-1"], r"stream\.arrivals\.request_rate: .*above 0"),
        (["stream.arrivals.kind=poison"], "poisson"),
        (["stream.promt=3"], r'did you mean "prompt"'),
        (["stream.trace={file: x.csv}"], "a trace has its own lengths"),
        (["stream={trace: {file: x.csv}}"], r"stream\.trace\.file: no file \"x.csv\", and no shipped trace"),
        (["stream.kv_blocks=20"], "needs 40 KV blocks, and there are 20"),
        (["stream.max_num_batched_tokens=8"], "max_num_seqs 32 is above max_num_batched_tokens 8"),
        (["strategy={kind: deepspeed}"], "DeepSpeed ZeRO is no engine with limits of its own: state"),
        (["strategy={kind: transformers}"], "and kv_blocks, or set strategy.kind to vllm"),
        (["stream.max_num_seqs=100000"], r"a step of 100000 tokens and 100000 sequences .* lower max_num_b"),
        (
            ["workload={kind: training, batch_size: 1, sequence_length: 8}"],
            "valid only for a workload of inf",
        ),
    ],
)
def test_bad_streams_are_refused_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        stream(*overrides)
    assert len(error.value.problems) <= 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft", "has no limit; write e.g. tpot=200ms, ttft=2s"),
        ("tfft=2s", 'unknown metric "tfft"; did you mean "ttft"'),
        ("ttft=2", "has no unit"),
        ("ttft=0s", "must be above zero"),
        ("attain=2", r"^slo: stream\.slo\.attain: must be at most 1"),
        ("itl=2s", 'unknown metric "itl"; this kind of work has ttft, tpot, e2el, attain'),
        ("ttft=2s,tpot=1s", "write each limit with a slo of its own"),
    ],
)
def test_bad_limits_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        stream(slo=text)


def test_a_ramp_has_no_rate_to_vary() -> None:
    ramp = "stream.arrivals={kind: ramp, ramp_up_start_rps: 1, ramp_up_end_rps: 20}"
    assert stream(ramp, "stream.replications=1").estimates["ttft_mean_s"].value > 0
    with pytest.raises(InputError, match="a ramp has no rate to vary"):
        stream(ramp, "stream.replications=1", slo="ttft=1s")


def test_a_scenario_without_the_section_is_refused() -> None:
    with pytest.raises(InputError, match="has no section stream"):
        so.stream("ddn/bloom-7b1")


def test_what_was_simulated_is_the_answer_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    run = StreamSimulation.run

    def stopping(self: Any, options: Any, number: int) -> Any:
        if number == 1:
            raise WorkLimitError("stopped by Ctrl-C")
        return run(self, options, number)

    monkeypatch.setattr(StreamSimulation, "run", stopping)
    found = stream()
    assert (len(found.measures), found.stopped) == (1, "stopped by Ctrl-C")


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "stream.yaml"
    file.write_text(TEXT)
    few = ["--set", "stream.num_prompts=30", "--set", "stream.replications=1"]
    assert main(["stream", str(file), *few, "--output-dir", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "TTFT p99" in out
    assert "KV blocks of 16 tokens" in out
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert main(["stream", str(file), *few, "--slo", "ttft=1us", "--json"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "simoffload/stream/1"
    assert data["best_load"] is None
    assert main(["stream", str(file), "--set", "stream.trace={file: missing}"]) == 2
    assert main(["stream", str(file), "--slo", "nothing=1"]) == 2


def test_other_commands_say_that_they_simulate_one_batch(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "fit"):
        assert main([command, "serving/llama-3.1-8b-chat"]) == 0
        told = " ".join(capsys.readouterr().err.split())
        assert "which simoffload stream simulates; this is one batch" in told
    assert main(["stream", "serving/llama-3.1-8b-chat", "--set", "stream.num_prompts=5"]) == 0
    keys = "workload.batch_size, workload.prompt_length, workload.output_length"
    told = " ".join(capsys.readouterr().err.split())
    assert f"stream does not use {keys}; simoffload run simulates" in told


def test_a_model_named_alone_gets_requests_of_a_chat(capsys: pytest.CaptureFixture[str]) -> None:
    question = ["stream", "llama-3.1-8b", "--gpu", "rtx-4090", "--set", "stream.num_prompts=20"]
    assert main(question) == 0
    printed = capsys.readouterr()
    assert "does not use" not in printed.err
    assert "· 1 request/s · 1 GPU rtx-4090 · rtx-4090-desktop" in printed.out
    assert "prompts of 1,032 tokens in the median, outputs of 238" in " ".join(printed.out.split())
    users = "stream.arrivals={kind: closed, users: 3}"
    assert main([*question, "--set", users]) == 0
    assert "· 3 users · 1 GPU rtx-4090" in capsys.readouterr().out
    few = ["--set", "stream.num_prompts=2", "--set", "stream.replications=1"]
    assert main(["stream", "gpt-oss-20b", "--gpu", "rtx-4080", "--program", "llama_cpp", *few]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "4 at a time (max_num_seqs), 1 request/s at random times" in text
    assert "under llama.cpp; --set" in text


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ((), 4 * 559),  # 7,930 + 1,000 tokens in blocks of 16
        (("stream.prompt={kind: fixed, tokens: 9000}",), 4 * 625),
        (("stream.prompt={kind: fixed, tokens: 9000}", "stream.max_num_seqs=2"), 2 * 625),
        (("stream.prompt={kind: lognormal, median: 900, sigma: 1}",), 4 * 2560),  # Qwen3 8B has 40,960
        (("stream.block_size=32",), 4 * 280),
        (("stream.prefixes=[{tokens: {kind: fixed, tokens: 1600}}]",), 4 * 659),
        (("stream.conversations={turns: {kind: fixed, tokens: 3}}",), 4 * 2560),
        (("stream.kv_blocks=700",), 700),
    ],
)
def test_a_program_that_is_no_engine_has_room_for_the_longest_requests(
    changes: tuple[str, ...], blocks: int
) -> None:
    named = question(
        "qwen3-8b", gpu="rtx-4090", program="accelerate", overrides=[*chat_overrides(()), *changes]
    )
    options = with_requests_named(named).scenario.stream
    assert options is not None
    assert options.kv_blocks == blocks


def test_what_is_wrong_with_a_stream_that_nobody_stated_names_the_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["stream", "qwen3-8b", "--gpu", "rtx-4090", "--set"]
    assert main([*words, "workload.kind=training"]) == 2
    assert "error: qwen3-8b: stream: is valid only for" in capsys.readouterr().err
    assert main([*words, "stream.prompt.median=no"]) == 2
    assert "error: --set: stream.prompt" in capsys.readouterr().err


def test_the_title_is_that_of_the_machine_that_is_simulated(usual: StreamResult) -> None:
    assert stream_document(usual).title[2:] == ("8 requests/s", "1 GPU h100-sxm", "h100-1gpu-vm")
    other = stream("equipment.accelerator=h200-sxm", "stream.num_prompts=5", "stream.replications=1")
    assert stream_document(other).title[3] == "1 GPU h200-sxm"


def test_costs_are_those_of_the_largest_load_within_limits() -> None:
    found = stream("stream.replications=1", slo="ttft=60ms")
    assert found.best is not None
    there = stream("stream.replications=1", f"stream.arrivals.request_rate={found.best.load}")
    limited, plain = found.priced(), there.priced()
    assert limited["cost_per_million_tokens"] == plain["cost_per_million_tokens"]
    assert limited["power_w"] == plain["power_w"]
    assert found.to_dict()["costs_load"] == found.best.load
    heading = f"Costs and energy at {found.best.load:.3g} requests/s"
    assert heading in [one.title for one in stream_document(found).sections]


def test_a_capacity_has_the_interval_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are a fifth longer serve a fifth less, or somewhat more than that: with more sequences at
    once, each step takes the host longer."""
    even = ("stream.arrivals={kind: constant, request_rate: 8}", "stream.replications=1")
    for factor in (1.0, 1.2):
        monkeypatch.setattr(
            "simoffload.extensions.serving.streams.step_errors",
            lambda _, by=factor: ((1 / by, 1 / by), (by, by)),
        )
        found = stream(*even, "stream.num_prompts=300", slo=["ttft=2s"])
        assert found.best is not None
        assert found.capacity == pytest.approx(
            (found.best.load / factor, found.best.load * factor), rel=0.15 if factor > 1 else 0.02
        )


def test_a_capacity_has_the_interval_of_chance() -> None:
    """The ends of the share of requests within limits, at 80 %, cross what must be attained."""

    def tried(load: float, value: float, half: float) -> RateTrial:
        return RateTrial(load, {"attained": ReplicatedMean(value, value - half, value + half)}, "")

    wider = 2.131847 / 1.533206  # Student's t of four degrees of freedom, at 90 and 80 %
    trials = [tried(4, 0.99, 0.0), tried(8, 0.92, 0.04 * wider), tried(16, 0.88, 0.04 * wider)]
    low, high = capacity_by_chance(trials, 8, attain=0.9, replications=5)
    assert low == pytest.approx(8 * (1 / 2) ** (0.02 / 0.11), rel=1e-4)
    assert high == 16
    assert capacity_by_chance(trials, 8, attain=0.9, replications=1) == (8, 8)


def test_a_stream_has_no_store_yet() -> None:
    """A connector was left out without a word, so that a buyer read that memory gains nothing."""
    with pytest.raises(InputError, match=r"kv_cache\.connector: a stream has no store .* simoffload run"):
        stream("strategy.kv_cache={connector: {tier: dram, prefix: 512}}")


def test_intervals_contain_errors_of_steps_which_a_queue_amplifies() -> None:
    light, heavy = (
        stream("stream.replications=1", f"stream.arrivals.request_rate={rate}", "stream.num_prompts=200")
        for rate in (2, 40)
    )
    widths = []
    for found in (light, heavy):
        assert found.passes is not None
        sigma = confidence(found.passes).sigma_of("ttft_s")
        low, high = found.intervals["ttft_mean_s"]
        assert low < found.estimates["ttft_mean_s"].value < high
        widths.append(log(high / low) / (2 * P90 * sigma))
    assert widths[0] == pytest.approx(1, abs=0.2)  # a prompt alone takes as much longer as its step
    assert widths[1] > 1.3
    chance = stream("stream.arrivals.request_rate=2", "stream.num_prompts=200", "stream.replications=3")
    assert chance.intervals["e2el_mean_s"][1] > chance.estimates["e2el_mean_s"].value


def test_errors_add_as_independent_ones() -> None:
    low, high = error_interval(2.0, 1.0, [0.5, 1.5], 1.0)
    assert low == pytest.approx(2 / exp(hypot(log(2), log(2))))
    assert high == pytest.approx(2 * exp(hypot(log(2), log(1.5))))
    assert error_interval(0.0, 0.0, [0.0, 3.0], 4.0) == (0.0, 5.0)


def test_tokens_cost_what_the_time_of_a_stream_costs() -> None:
    busy, idle = (
        stream("stream.replications=1", f"stream.arrivals.request_rate={rate}", slo=["tpot=1us"])
        for rate in (40, 0.01)
    )
    for found in (busy, idle):
        assert found.costs is not None
        priced, measured = found.priced(), found.measures[0].metrics()
        tokens_per_s, requests_per_s = measured["output_tokens_per_s"], measured["requests_per_s"]
        hourly = found.costs.at_least()["cost_per_h"]
        assert hourly is not None
        assert priced["cost_per_million_tokens"] == pytest.approx(
            hourly / 3600 / tokens_per_s * 1e6, rel=1e-3
        )
        assert priced["cost_per_request"] == pytest.approx(hourly / 3600 / requests_per_s)
        assert priced["cost_per_million_tokens_within"] is None  # no request keeps the limit
        assert priced["energy_per_token_j"] == pytest.approx(priced["power_w"] / tokens_per_s, rel=1e-3)
    draws = [
        next(one for one in found.costs.energy.draws if "accelerator" in one.key) for found in (busy, idle)
    ]
    assert draws[1].busy < 0.01 < 0.5 < draws[0].busy
    assert draws[1].watts == pytest.approx(draws[1].idle_w, rel=0.05)
    within = stream("stream.replications=1", slo="ttft=10s").priced()
    assert within["cost_per_million_tokens_within"] == within["cost_per_million_tokens"]


def test_a_share_of_requests_needs_a_limit() -> None:
    with pytest.raises(InputError, match="attain needs a limit that so many requests keep"):
        stream(slo="attain=0.99")


def test_buffers_of_so_many_sequences_leave_blocks() -> None:
    """Each sequence has a buffer of 4,096 rows in every layer: those of 1,024 would fill the cache."""
    scenario = read_source("vllm/glm-5-hot-rows")
    stream = dict(parse_yaml(TEXT, name="stream.yaml").data["stream"])
    del stream["max_num_seqs"]
    limits = StreamSimulation(scenario.edited(Edit(("stream",), stream))).limits
    assert 1 < limits.sequences < 1024
    assert limits.blocks > 0


def test_states_of_so_many_sequences_are_in_blocks() -> None:
    """Each sequence of DeepSeek-V4-Pro keeps states of 19 MB, for which blocks are taken when it begins."""
    scenario = question("deepseek-v4-pro", "dgx-h200", gpus=8, program="vllm")
    stream = dict(parse_yaml(TEXT, name="stream.yaml").data["stream"])
    del stream["max_num_seqs"]
    limits = StreamSimulation(scenario.edited(Edit(("stream",), stream))).limits
    assert limits.sequences == 1024
    assert limits.blocks // limits.groups.number < 1024
