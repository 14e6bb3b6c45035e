"""A streamed cache: what each pass reads and writes, on which tier, how long it takes, what it occupies."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Any

import pytest

import simoffload as so
from simoffload.models import Sequences
from simoffload.scenario import LoadedScenario
from simoffload.schedule import Schedule
from simoffload.simulation.capacity import memory_footprint
from simoffload.strategies.passes.pass_writer import DEPTH, REQUEST, ForwardPass, PassWriter
from tests.strategies.scenarios import (
    BATCH,
    COMPILED,
    KINDS,
    PROMPT,
    VLLM,
    decode,
    operations,
    scenario,
    terms,
)
from tests.strategies.scenarios import streamed as cache

PREFETCHED = {**VLLM, "offload_group_size": 8}
FAMILIES = {
    "llama-2-7b": (32, 32 * 128, 32 * 128),
    "llama-3.1-8b": (32, 8 * 128, 8 * 128),
    "falcon-7b": (32, 64, 64),
    "deepseek-v2-lite": (27, 512, 64),
}
"""Layers, and elements of a token in the two tensors of one: multi-head, grouped-query, multi-query and
latent attention."""
ELEMENTS = {None: 2.0, "fp8": 1.0, "int8": 1 + 4 / 64, "int4": 0.5 + 4 / 64}
TIERS = ("dram", "raid", "nfs", "pfs", "nvmeof")


Moved = Counter[tuple[str, str]]
"""Bytes of keys and values by stream and way."""


def moved(found: LoadedScenario, *batch: Sequences) -> Moved:
    sizes: Moved = Counter()
    for one in operations(found, *batch):
        if one.label == "keys and values" and one.size:
            sizes[one.stream, one.way.partition(" (")[0]] += one.size
    return sizes


def expected(tier: str, *, read: list[int], stored: list[int], layers: int, paged: bool = True) -> Moved:
    """Return what a pass moves if each layer reads and stores tensors of such sizes."""

    def pages(sizes: list[int]) -> int:
        return sum(ceil(size / 4096) * 4096 if paged else size for size in sizes)

    found = {("load", "host to GPU"): sum(read), ("store", "GPU to host"): sum(stored)}
    if tier != "dram":
        found |= {("read", f"{tier} read"): pages(read), ("write", f"{tier} write"): pages(stored)}
    return Counter({key: layers * size for key, size in found.items() if size})


def step_s(**keys: Any) -> float:
    return float(decode(**keys).time_s)


# -- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ELEMENTS)
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("model", FAMILIES)
def test_a_step_reads_what_is_there_and_writes_the_new_tokens(
    model: str, tier: str, form: str | None
) -> None:
    """Every layer its own, in both directions; on files in whole pages."""
    layers, *widths = FAMILIES[model]
    found = scenario(model=model, cache=cache(tier, form))

    def sizes(tokens: int) -> list[int]:
        return [ceil(BATCH * tokens * width * ELEMENTS[form]) for width in widths]

    for context in (PROMPT + 1, PROMPT + 2):
        step = moved(found, Sequences(BATCH, 1, context))
        assert step == expected(tier, read=sizes(context - 1), stored=sizes(1), layers=layers)
    prompt = moved(found, Sequences(BATCH, PROMPT, PROMPT))
    assert prompt == expected(tier, read=[], stored=sizes(PROMPT), layers=layers)


@pytest.mark.parametrize("strategy", [KINDS["resident"], {**COMPILED, "max_num_batched_tokens": 1 << 16}])
def test_sliding_layers_read_their_window(strategy: dict[str, Any]) -> None:
    """A token attends to itself and to 4095 before it; a prompt in one chunk reads nothing."""
    token, prompt = BATCH * 8 * 256 * 2, 5000
    found = scenario(model="gemma-2-9b", strategy=strategy, prompt_length=prompt, cache=cache("dram"))
    step = moved(found, Sequences(BATCH, 1, prompt + 1))
    assert step["load", "host to GPU"] == 21 * 2 * token * (4095 + prompt)
    assert step["store", "GPU to host"] == 42 * 2 * token
    stored = moved(found, Sequences(BATCH, prompt, prompt))
    assert stored == Counter({("store", "GPU to host"): 21 * 2 * token * (4095 + prompt)})


def test_sequences_of_different_lengths_share_a_pass() -> None:
    """One begins, two go on: only these have earlier tokens."""
    token = 8 * 128 * 2
    batch = Sequences(1, 64, 64), Sequences(2, 1, 100)
    step = moved(scenario(cache=cache("dram")), *batch)
    assert step == expected("dram", read=[2 * 99 * token] * 2, stored=[66 * token] * 2, layers=32)


def test_every_gpu_moves_a_whole_latent_cache() -> None:
    divided = {"kind": "vllm", "tensor_parallel_size": 4}
    found = scenario(model="deepseek-v2-lite", strategy=divided, cache=cache("dram"))
    step = moved(found, Sequences(BATCH, 1, PROMPT + 1))
    assert step["load", "host to GPU"] == 27 * BATCH * PROMPT * (512 + 64) * 2


def test_each_gpu_of_accelerate_has_its_own_link() -> None:
    """15 layers are on the first GPU, and 17 on the second."""
    both = {"kind": "accelerate", "num_gpus": 2, "max_memory": {"0": "8 GiB", "1": "12 GiB"}}
    step = moved(scenario(strategy=both, cache=cache("raid")), Sequences(BATCH, 1, PROMPT + 1))
    layer = 2 * BATCH * 1024 * 2
    one, other = (step["load", f"host to GPU{gpu}"] for gpu in ("", " 1"))
    assert one + other == 32 * PROMPT * layer
    assert one % (PROMPT * layer) == 0
    stored = [step["store", f"GPU to host{gpu}"] for gpu in ("", " 1")]
    assert [size * PROMPT for size in stored] == [one, other]
    assert min(stored) > 0
    assert step["read", "raid read"] == 32 * PROMPT * layer, "all of it into the memory of one host"


def test_memory_of_another_host_has_no_pages() -> None:
    """It is read and written by bytes."""
    found = scenario(model="falcon-7b", platform="hgx-h800", cache=cache("peer", "fp8"))
    step = moved(found, Sequences(BATCH, 1, PROMPT + 1))
    read, stored = ([BATCH * tokens * 64] * 2 for tokens in (PROMPT, 1))
    assert step == expected("peer", read=read, stored=stored, layers=32, paged=False)


# -- times ---------------------------------------------------------------------------------------

LONG: dict[str, Any] = {"prompt_length": 30_000, "batch_size": 8, "steps": 1}


def bytes_of(found: LoadedScenario) -> int:
    """Return the size of the cache before the first decode step."""
    work: Any = found.scenario.workload
    return found.model.kv_cache_bytes(batch=work.batch_size, tokens=work.prompt_length)


@pytest.mark.parametrize(
    ("tier", "rate", "keys"),
    [
        ("dram", 55.5e9, {}),
        ("raid", 39.4e9, {}),
        ("nfs", 8.75e9, {}),
        ("nvmeof", 48e9, {}),
        ("pfs", 90e9, {"model": "llama-3.1-70b", "strategy": {**COMPILED, "tensor_parallel_size": 8}}),
    ],
)
def test_the_link_or_the_tier_limits_a_step(tier: str, rate: float, keys: dict[str, Any]) -> None:
    """Behind the last read come one copy and one layer; eight GPUs share the servers of a filesystem."""
    keys = {**LONG, "strategy": COMPILED, **keys, "cache": cache(tier)}
    time, size = step_s(**keys), bytes_of(scenario(**keys))
    assert size / rate < time < (1.02 if tier == "pfs" else 1.06) * size / rate


def test_requests_in_flight_reach_the_rate_of_every_tier() -> None:
    """Little's law lowers it only for pieces that are smaller than what would be in flight."""
    machine = scenario().machine
    for tier in TIERS[1:]:
        for reach in (machine.storage_read, machine.storage_write):
            path = reach(tier, 0)
            assert path.outstanding_rate(DEPTH * REQUEST, block=REQUEST) >= path.curve.rate(1 << 30)


@pytest.mark.parametrize("form", ["fp8", "int8", "int4"])
def test_formats_with_fewer_bits_take_less_time(form: str) -> None:
    """In proportion to the size of their elements, as the drives limit all of them."""
    keys = {**LONG, "strategy": COMPILED}
    whole, less = (step_s(**keys, cache=cache("raid", one)) for one in (None, form))
    assert less / whole == pytest.approx(ELEMENTS[form] / 2, rel=0.02)


def test_a_short_cache_is_hidden_behind_the_computation() -> None:
    """Only the load of the first layer shows: the others come during the computation of the layers before."""
    keys: dict[str, Any] = {"strategy": COMPILED, "batch_size": 1, "prompt_length": 1000, "steps": 1}
    inside, outside = step_s(**keys), step_s(**keys, cache=cache("dram"))
    first = bytes_of(scenario(**keys)) / 32 / 55.5e9
    latency = 2 * 10e-6
    assert inside + first / 2 < outside < inside + first + latency


def test_attention_reads_it_as_vllm_reads_its_cache() -> None:
    """In the same kernels: with fused code the GPU takes as long as with the cache in HBM, to the
    picosecond."""
    streamed, paged = (
        scenario(strategy=COMPILED, cache=one).plan() for one in (cache("raid", "fp8"), {"format": "fp8"})
    )
    one, other = (plan.durations(plan.forward("decode", 1, PROMPT + 1)) for plan in (streamed, paged))  # type: ignore[attr-defined]
    assert one == other


@pytest.mark.parametrize("form", ELEMENTS)
def test_nothing_is_joined(form: str | None) -> None:
    """Eager code reads the stored bytes once and writes new tokens in place, where ``torch.cat`` reads and
    writes all of them."""
    keys: dict[str, Any] = {"batch_size": 16, "prompt_length": 8000, "steps": 1}
    plans = [scenario(**keys, cache=one).plan() for one in ({}, cache("dram", form))]
    times = [sum(plan.durations(plan.forward("decode", 1, 8001))) for plan in plans]  # type: ignore[attr-defined]
    tokens, width, rate = 16 * 8001, 2 * 1024, plans[0].machine.accelerator.hbm_rate
    saved = tokens * width * (2 * 2 + 2 - ELEMENTS[form]) - 16 * width * (2 + ELEMENTS[form])
    assert times[0] - times[1] >= 0.99e12 * saved / rate


def test_a_step_grows_with_every_token() -> None:
    """By the bytes of the tokens between over the rate of the tier."""
    result: Any = so.simulate(scenario(**{**LONG, "steps": 500}, strategy=COMPILED, cache=cache("raid")))
    first, last = (one for one in (result.decode[0], result.decode[-1]))
    grown = 8 * 499 * 32 * 2 * 1024 * 2
    assert last.time_s - first.time_s == pytest.approx(grown / 39.4e9, rel=0.05)
    middle = 500 * (first.time_s + last.time_s) / 2
    assert result.decode_total_s == pytest.approx(middle, rel=1e-3)


def test_a_prefill_ends_with_its_writes() -> None:
    """Where the servers are slower than the computation, they are nearly all of it."""
    keys: dict[str, Any] = {"model": "llama-2-7b", "prompt_length": 4000, "strategy": COMPILED, "steps": 1}
    inside, outside = (so.simulate(scenario(**keys, cache=one)).passes[0] for one in (None, cache("nfs")))
    writes = bytes_of(scenario(**keys)) / scenario(**keys).machine.targets["nfs"].write.rate
    assert inside.time_s < 0.5 * writes
    assert writes < outside.time_s < writes + 0.1 * inside.time_s


BLOCKS = {"connector": {"tier": "raid", "prefix": 512, "layerwise": True}}


@pytest.mark.parametrize(
    ("strategy", "section"),
    [(KINDS["resident"], cache()), (COMPILED, BLOCKS), (PREFETCHED, BLOCKS), (PREFETCHED, cache())],
)
def test_sliding_layers_in_turn_are_those_that_would_be_written(
    strategy: dict[str, Any], section: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the prefill, and beside blocks that move layer by layer."""
    monkeypatch.setattr(PassWriter, "verify", True)
    so.simulate(scenario(model="gpt-oss-20b", strategy=strategy, cache=section))


@pytest.mark.parametrize("strategy", [*KINDS.values(), COMPILED])
def test_only_steps_that_are_simulated_are_written(
    strategy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each moves other bytes, so that none follows from another."""
    written: list[str] = []
    found = scenario(strategy=strategy, cache=cache("dram"), steps=60)
    owner = type(found.plan())
    schedule = owner.schedule  # type: ignore[attr-defined]

    def noted(self: Any, forward: ForwardPass) -> Schedule:
        written.append(forward.name)
        return schedule(self, forward)  # type: ignore[no-any-return]

    monkeypatch.setattr(owner, "schedule", noted)
    result: Any = so.simulate(found)
    steps = [one for one in written if one.startswith("decode")]
    assert sorted(steps) == sorted(one.name for one in result.decode)


# -- memory --------------------------------------------------------------------------------------


def test_host_memory_has_the_cache_once() -> None:
    """Each tensor in a power of two, from the start."""
    found = terms(**{**LONG, "steps": 9}, cache=cache("dram"))
    tensor = 8 * 30_009 * 1024 * 2
    assert found["dram", "key-value cache"] == 64 * tensor
    assert found["dram", "rounding of pinned allocations"] == 64 * ((512 << 20) - tensor)
    assert found["hbm", "key-value cache of two layers"] == 4 * tensor
    assert not {name for tier, name in found if "buffers" in name}


@pytest.mark.parametrize("form", ELEMENTS)
def test_storage_has_the_cache_and_host_memory_its_buffers(form: str | None) -> None:
    found = terms(**{**LONG, "steps": 9}, cache=cache("raid", form))
    tensor, prompt = (ceil(8 * tokens * 1024 * ELEMENTS[form]) for tokens in (30_009, 30_000))
    assert found["raid", "key-value cache"] == 64 * ceil(tensor / 4096) * 4096
    assert found["dram", "buffers of the cache"] == 4 * (tensor + prompt)
    blocks = [1 << (size - 1).bit_length() for size in (tensor, prompt)]
    assert found["dram", "rounding of pinned allocations"] == 4 * (sum(blocks) - tensor - prompt)
    assert found["hbm", "key-value cache of two layers"] == 4 * tensor
    whole = found.get(("hbm", "keys and values of a prompt in a layer"))
    assert whole == (None if form is None else 2 * 8 * 30_000 * 1024 * 2)
    assert ("dram", "key-value cache") not in found


def test_a_tier_has_the_caches_of_all_gpus_and_a_host_its_own() -> None:
    """Eight replicas need eight caches; divided among eight GPUs, a model needs one."""
    one, many = (
        terms(strategy={"kind": "transformers", "ranks": ranks}, cache=cache("pfs")) for ranks in (1, 8)
    )
    for key in (("pfs", "key-value cache"), ("dram", "buffers of the cache")):
        assert many[key] == 8 * one[key]
    assert many["hbm", "key-value cache of two layers"] == one["hbm", "key-value cache of two layers"]
    divided = {"kind": "transformers", "tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    (total,) = (
        size for (tier, _), size in terms(strategy=divided, cache=cache("pfs")).items() if tier == "pfs"
    )
    assert total == pytest.approx(one["pfs", "key-value cache"], rel=0.01), "rounded to pages on more GPUs"


def test_a_prefill_alone_needs_no_buffers_for_reading() -> None:
    found = terms(steps=0, cache=cache("raid"))
    assert found["dram", "buffers of the cache"] == 4 * BATCH * PROMPT * 1024 * 2


def test_a_cache_larger_than_host_memory_fits_on_storage() -> None:
    keys: dict[str, Any] = {"batch_size": 64, "prompt_length": 300_000, "steps": 1}
    uses = {
        tier: {use.tier: use.fits for use in memory_footprint(scenario(**keys, cache=cache(tier)))}
        for tier in ("dram", "raid")
    }
    assert (uses["dram"]["dram"], uses["raid"]["dram"], uses["raid"]["raid"]) == (False, True, True)


def test_a_tier_without_room_is_a_verdict() -> None:
    """Of 30.7 TB of drives; which part is largest, and what would help."""
    result = so.simulate(scenario(batch_size=1000, prompt_length=500_000, cache=cache("raid")))
    assert not result.fits
    (advice,) = (one for one in result.advice if "raid" in one)
    assert "lower batch_size, prompt_length or output_length (largest part: key-value cache)" in advice


# -- what reports say ----------------------------------------------------------------------------


def test_drives_wear_by_what_is_written() -> None:
    result: Any = so.simulate(scenario(cache=cache("raid")))
    row = ceil(BATCH * 1024 * 2 / 4096) * 4096
    written = 64 * (BATCH * PROMPT * 1024 * 2 + 3 * row)
    (stored,) = result.traffic
    assert (stored.tier, stored.written) == ("raid", written)
    assert stored.read == 64 * sum(BATCH * (PROMPT + one) * 1024 * 2 for one in range(3))
    (worn,) = result.drive_lifetime
    assert worn.drive_lifetime.per_step == written
    assert worn.unit == "generation"
    assert not getattr(so.simulate(scenario(cache=cache("dram"))), "traffic", ())


STRATEGIES = [*KINDS.values(), {"kind": "transformers"}, COMPILED, VLLM, PREFETCHED]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_report_says_that_no_program_has_it(strategy: dict[str, Any]) -> None:
    """Once, and it contains no file for a program, as none would do the same. The error is unknown."""
    found = scenario(strategy=strategy, cache=cache("pfs"))
    result = so.simulate(found)
    said = [one for one in result.warnings if one.startswith("what if: ")]
    assert said == [
        "what if: no program has a cache with implementation: streamed; no real run was compared with it"
    ]
    assert found.exports() == result.provenance.exports == {}
    assert result.confidence is not None
    used = f"used {found.scenario.strategy.traits.title} with kv_cache.implementation: streamed"
    assert result.confidence.unlike == used or strategy["kind"] == "vllm"
