"""A streamed cache: what each pass reads and writes, on which tier, how long it takes, what it occupies."""

from __future__ import annotations

from collections import Counter
from math import ceil
from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.calibration.runs import request
from simoffload.cli import main
from simoffload.documents import parse_yaml, yaml_text
from simoffload.models import Sequences
from simoffload.results import cause_text
from simoffload.scenario import LoadedScenario, resolve
from simoffload.schedule import Schedule
from simoffload.simulation.capacity import memory_footprint
from simoffload.strategies import Phase
from simoffload.strategies.held import memory_stages, traffic
from simoffload.strategies.passes.pass_writer import ForwardPass, PassWriter
from simoffload.strategies.passes.streams import DEPTH, REQUEST

BATCH, PROMPT = 4, 1000
KINDS: dict[str, dict[str, Any]] = {
    "resident": {"kind": "resident"},
    "accelerate": {"kind": "accelerate", "device_map": "cuda"},
    "zero_inference": {"kind": "zero_inference", "weights": "hbm"},
    "tensor_parallel": {"kind": "tensor_parallel"},
    "compiled": {"kind": "tensor_parallel", "compiled": True},
    "vllm": {"kind": "vllm_cpu_offload"},
    "vllm prefetching": {"kind": "vllm_cpu_offload", "offload_group_size": 8},
}
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


def cache(tier: str = "raid", form: str | None = None) -> dict[str, Any]:
    return {"tier": tier, "implementation": "streamed"} | ({} if form is None else {"format": form})


def text(*, model: Any = "llama-3.1-8b", steps: int = 3, platform: str = "dgx-h200", **keys: Any) -> str:
    work = {"batch_size": BATCH, "prompt_length": PROMPT, "output_length": steps + 1}
    strategy = dict(keys.pop("strategy", KINDS["resident"]))
    if (section := keys.pop("cache", None)) is not None:
        strategy["kv_cache"] = section
    content = {"name": "streamed", "model": model, "platform": platform, "workload": work | keys}
    return yaml_text({**content, "strategy": strategy})


def scenario(engine: dict[str, Any] | None = None, **keys: Any) -> LoadedScenario:
    document = parse_yaml(text(**keys), name="s.yaml")
    if engine:
        document.data["engine"] = engine
    return resolve(document)


Moved = Counter[tuple[str, str]]
"""Size of all operations on keys and values, by stream and route."""


def moved(found: LoadedScenario, *batch: Sequences) -> Moved:
    """Return what a pass moves on the first rank of each program."""
    schedule = found.plan().step(batch).schedule({})  # type: ignore[attr-defined]
    sizes: Moved = Counter()
    for block in schedule.blocks:
        for op in block.ops:
            if op.label == "keys and values" and op.size:
                sizes[
                    schedule.streams[op.stream],
                    cause_text(schedule.routes[op.route].cause._replace(purpose="")),
                ] += op.size * block.repeat
    return sizes


def expected(tier: str, *, read: list[int], stored: list[int], layers: int, paged: bool = True) -> Moved:
    """Return what a pass moves if each layer reads and stores tensors of such sizes."""

    def pages(sizes: list[int]) -> int:
        return sum(ceil(size / 4096) * 4096 if paged else size for size in sizes)

    found = {("load", "host to GPU"): sum(read), ("store", "GPU to host"): sum(stored)}
    if tier != "dram":
        found |= {("read", f"{tier} read"): pages(read), ("write", f"{tier} write"): pages(stored)}
    return Counter({key: layers * size for key, size in found.items() if size})


def decode(result: Any) -> Any:
    return next(one for one in result.passes if one.name == "decode 1")


def step_s(**keys: Any) -> float:
    return float(decode(so.simulate(scenario(**keys))).time_s)


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v2-lite"])
def test_every_strategy_moves_the_same(model: str, kind: str) -> None:
    if (model, kind) == ("deepseek-v2-lite", "vllm prefetching"):
        return  # its 27 layers are not in groups of 8
    layers, *widths = FAMILIES[model]
    found = scenario(model=model, strategy=KINDS[kind], cache=cache("pfs", "fp8"))
    step = moved(found, Sequences(BATCH, 1, PROMPT + 1))
    read, stored = ([BATCH * tokens * width for width in widths] for tokens in (PROMPT, 1))
    assert step == expected("pfs", read=read, stored=stored, layers=layers)


@pytest.mark.parametrize("kind", KINDS)
def test_sliding_layers_read_their_window(kind: str) -> None:
    """A token attends to itself and to 4095 before it."""
    token, prompt = BATCH * 8 * 256 * 2, 5000
    strategy = KINDS[kind] | ({"offload_group_size": 7} if "prefetching" in kind else {})
    if strategy.get("compiled") or "vllm" in kind:
        strategy = {**strategy, "max_num_batched_tokens": 1 << 16}  # in one chunk, which reads nothing
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


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b"])
def test_every_gpu_moves_its_heads(model: str) -> None:
    """Two of eight heads are on each of four GPUs; their keys of new tokens fill a quarter of a page."""
    heads = 2
    divided = {"kind": "tensor_parallel", "tensor_parallel_size": 4, "compiled": True}
    found = scenario(model=model, strategy=divided, cache=cache("raid", "fp8"))
    read, stored = ([BATCH * tokens * heads * 128] * 2 for tokens in (PROMPT, 1))
    layers = found.model.num_hidden_layers
    assert moved(found, Sequences(BATCH, 1, PROMPT + 1)) == expected(
        "raid", read=read, stored=stored, layers=layers
    )
    (stored,) = traffic(found.plan())
    assert stored.written == 4 * layers * 2 * sum(
        ceil(BATCH * tokens * heads * 128 / 4096) * 4096 for tokens in (PROMPT, 1, 1, 1)
    )


def test_every_gpu_moves_a_whole_latent_cache() -> None:
    divided = {"kind": "tensor_parallel", "tensor_parallel_size": 4, "compiled": True}
    found = scenario(model="deepseek-v2-lite", strategy=divided, cache=cache("dram"))
    step = moved(found, Sequences(BATCH, 1, PROMPT + 1))
    assert step["load", "host to GPU"] == 27 * BATCH * PROMPT * (512 + 64) * 2


def test_stages_move_their_layers() -> None:
    stages = {"kind": "tensor_parallel", "pipeline_parallel_size": 2}
    step = moved(scenario(strategy=stages, cache=cache("raid")), Sequences(BATCH, 1, PROMPT + 1))
    token = BATCH * 1024 * 2
    assert step == expected("raid", read=[PROMPT * token] * 2, stored=[token] * 2, layers=32)


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


@pytest.mark.parametrize("kind", KINDS)
def test_links_carry_what_is_moved(kind: str) -> None:
    """The cable of the GPU, and those of each of eight drives, in both directions."""
    if "prefetching" in kind:
        return  # its weights use the same cable
    result: Any = so.simulate(scenario(strategy=KINDS[kind], cache=cache("raid")))
    carried = {one.link: one.size for one in decode(result).links if "<->" not in one.link}
    token = BATCH * 2 * 1024 * 2
    gpu = [size for link, size in carried.items() if "gpu0" in link]
    assert sorted(gpu) == [32 * token, 32 * token * PROMPT]
    drives = [size for link, size in carried.items() if "raid.0" in link]
    assert sorted(drives) == pytest.approx([32 * token / 8, 32 * token * PROMPT / 8])


# -- times ---------------------------------------------------------------------------------------

LONG: dict[str, Any] = {"prompt_length": 30_000, "batch_size": 8, "steps": 1}
COMPILED = KINDS["compiled"]


def bytes_of(found: LoadedScenario) -> int:
    """Return the size of the cache before the first decode step."""
    work: Any = found.scenario.workload
    return found.model.kv_cache_bytes(batch=work.batch_size, tokens=work.prompt_length)


def test_the_link_limits_a_cache_in_host_memory() -> None:
    """A step takes the time of the copies, and of the last layer, which nothing hides."""
    keys = {**LONG, "strategy": COMPILED, "cache": cache("dram")}
    time, size = step_s(**keys), bytes_of(scenario(**keys))
    assert size / 55.5e9 < time < 1.05 * size / 55.5e9


@pytest.mark.parametrize(("tier", "rate"), [("raid", 39.4e9), ("nfs", 8.75e9), ("nvmeof", 48e9)])
def test_the_tier_limits_a_cache_on_storage(tier: str, rate: float) -> None:
    """Behind the last read come one copy and one layer."""
    keys = {**LONG, "strategy": COMPILED, "cache": cache(tier)}
    time, size = step_s(**keys), bytes_of(scenario(**keys))
    assert size / rate < time < 1.06 * size / rate


def test_requests_in_flight_reach_the_rate_of_every_tier() -> None:
    """Little's law lowers it only for pieces that are smaller than what would be in flight."""
    machine = scenario().machine
    for tier in TIERS[1:]:
        for reach in (machine.storage_read, machine.storage_write):
            path = reach(tier, 0)
            assert path.outstanding_rate(DEPTH * REQUEST, block=REQUEST) >= path.curve.rate(1 << 30)


def test_gpus_share_the_servers() -> None:
    """Eight GPUs read 90 GB/s from the parallel filesystem, the rate of its servers."""
    divided = {"kind": "tensor_parallel", "tensor_parallel_size": 8, "compiled": True}
    keys = {**LONG, "model": "llama-3.1-70b", "strategy": divided, "cache": cache("pfs")}
    time, size = step_s(**keys), bytes_of(scenario(**keys))
    assert size / 90e9 < time < 1.02 * size / 90e9


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


def test_the_cache_shares_the_link_with_weights() -> None:
    weights = {"kind": "zero_inference", "weights": "dram"}
    keys: dict[str, Any] = {"strategy": weights, "batch_size": 32, "steps": 1}
    plain, both = step_s(**keys), step_s(**keys, cache=cache("dram"))
    found = scenario(**keys)
    stored = found.model.weight_bytes - found.model.vocab_size * 4096 * 2  # rows of the embedding
    assert both >= (stored + bytes_of(found)) / 55.5e9
    assert both > plain + 0.75 * bytes_of(found) / 55.5e9


def test_drives_serve_weights_and_cache() -> None:
    buffers = {"zero_optimization": {"offload_param": {"buffer_size": 600_000_000}}}
    weights = {"kind": "zero_inference", "weights": "raid", "ds_config": buffers}
    keys: dict[str, Any] = {"strategy": weights, "batch_size": 32, "steps": 1}
    plain, both = (decode(so.simulate(scenario(**keys, cache=one))) for one in (None, cache("raid")))
    read = [sum(one.size for one in step.links if one.link == "raid.0 -> cpu") for step in (plain, both)]
    assert read[1] - read[0] == pytest.approx(bytes_of(scenario(**keys)) / 8)
    assert both.time_s > plain.time_s


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
    writes = bytes_of(scenario(**keys)) / scenario(**keys).machine.topology.targets["nfs"].write.rate
    assert inside.time_s < 0.5 * writes
    assert writes < outside.time_s < writes + 0.1 * inside.time_s


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tier", ["dram", "pfs"])
def test_shortcuts_change_nothing(kind: str, tier: str) -> None:
    """Steady states, equal ranks and steps that are interpolated."""
    checked = dict.fromkeys(("steady_state", "rank_symmetry", "decode_extrapolation"), "verify")
    so.simulate(scenario(engine=checked, strategy=KINDS[kind], cache=cache(tier), steps=20))


PIPELINES = {
    "stages": {"kind": "tensor_parallel", "tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    "vllm in place": {"kind": "vllm_cpu_offload", "cpu_offload_gb": 2},
}


@pytest.mark.parametrize(
    "kind", ["resident", "accelerate", "compiled", "vllm", "vllm prefetching", *PIPELINES]
)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
@pytest.mark.parametrize("layerwise", [False, True])
def test_a_layer_that_is_copied_is_that_which_would_be_written(
    kind: str, model: str, layerwise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the prefill, with sliding layers in turn, and beside blocks that move layer by layer."""
    strategy = KINDS.get(kind) or PIPELINES[kind]
    blocks = {"connector": {"tier": "raid", "prefix": 512, "layerwise": True}}
    if layerwise and strategy["kind"] != "vllm_cpu_offload":
        kept = {key: value for key, value in strategy.items() if key != "device_map"}
        strategy = kept | {"compiled": True, "kind": "tensor_parallel"}
    found = scenario(model=model, strategy=strategy, cache=blocks if layerwise else cache())

    def schedules() -> list[Any]:
        phases = [one if isinstance(one, Phase) else one.step(1) for one in found.plan().phases]
        return [[(block.ops, block.repeat) for block in one.schedule({}).blocks] for one in phases]

    repeat, layers = PassWriter._repeat, []

    def noted(self: PassWriter, known: Any) -> None:
        layers.append(known)
        repeat(self, known)

    monkeypatch.setattr(PassWriter, "_repeat", noted)
    copied = schedules()
    assert layers or layerwise or kind == "vllm in place"
    monkeypatch.setattr(PassWriter, "verify", True)
    assert schedules() == copied


@pytest.mark.parametrize("kind", ["resident", "accelerate", "zero_inference", "compiled"])
def test_only_steps_that_are_simulated_are_written(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each moves other bytes, so that none follows from another."""
    written: list[str] = []
    found = scenario(strategy=KINDS[kind], cache=cache("dram"), steps=60)
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


def terms(**keys: Any) -> dict[tuple[str, str], int]:
    (stage,) = memory_stages(scenario(**keys).plan())
    return {(one.tier, one.name): one.size for one in stage.terms}


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
    one, many = (terms(strategy={"kind": "resident", "ranks": ranks}, cache=cache("pfs")) for ranks in (1, 8))
    for key in (("pfs", "key-value cache"), ("dram", "buffers of the cache")):
        assert many[key] == 8 * one[key]
    assert many["hbm", "key-value cache of two layers"] == one["hbm", "key-value cache of two layers"]
    divided = {"kind": "tensor_parallel", "tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    (total,) = (
        size for (tier, _), size in terms(strategy=divided, cache=cache("pfs")).items() if tier == "pfs"
    )
    assert total == pytest.approx(one["pfs", "key-value cache"], rel=0.01), "rounded to pages on more GPUs"


def test_a_prefill_alone_needs_no_buffers_for_reading() -> None:
    found = terms(steps=0, cache=cache("raid"))
    assert found["dram", "buffers of the cache"] == 4 * BATCH * PROMPT * 1024 * 2


def test_sliding_layers_keep_their_window() -> None:
    found = terms(model="gemma-2-9b", prompt_length=5000, cache=cache("dram"))
    token = 2 * BATCH * 8 * 256 * 2
    assert found["dram", "key-value cache"] == 21 * token * (4095 + 5003)
    assert found["hbm", "key-value cache of two layers"] == token * (4095 + 5003)


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_report_says_that_no_program_has_it(kind: str) -> None:
    """Once, and it contains no file for a program, as none would do the same."""
    found = scenario(strategy=KINDS[kind], cache=cache("pfs"))
    result = so.simulate(found)
    said = [one for one in result.warnings if one.startswith("what if: ")]
    assert said == [
        "what if: no program has a cache with implementation: streamed; no real run was compared with it"
    ]
    assert found.exports() == result.provenance.exports == {}
    plain = so.simulate(scenario(strategy=KINDS[kind]))
    assert not [one for one in plain.warnings if "what if" in one]


@pytest.mark.parametrize("kind", ["resident", "accelerate", "zero_inference", "tensor_parallel", "compiled"])
def test_the_error_is_unknown(kind: str) -> None:
    result = so.simulate(scenario(strategy=KINDS[kind], cache=cache("raid")))
    assert result.confidence is not None
    used = f"used strategy.kind {KINDS[kind]['kind']} with kv_cache.implementation: streamed"
    assert result.confidence.unlike == used


# -- mistakes ------------------------------------------------------------------------------------

CONNECTED = {**cache("raid"), "connector": {"tier": "dram"}}


@pytest.mark.parametrize(
    ("keys", "key", "message"),
    [
        ({"cache": {"tier": "attic", "implementation": "streamed"}}, "tier", 'no tier "attic" on platform'),
        ({"cache": cache("hbm")}, "implementation", "set tier to dram, raid, nfs, pfs or nvmeof, or"),
        ({"cache": {"implementation": "streamed"}}, "implementation", "is not on the GPU, and tier is hbm"),
        ({"cache": cache("raid", "int2")}, "format", "use fp8, int8 or int4, or leave it out"),
        ({"cache": {"tier": "raid"}}, "tier", "use hbm or dram, or leave it out; or try a what-if"),
        ({"cache": {"format": "int8"}}, "format", "implementation: streamed"),
        ({"cache": {"tier": "dram", "format": "int4"}}, "tier", "implementation: streamed"),
        ({"cache": {**cache(), "pin_memory": True}}, "pin_memory", "remove it"),
        ({"cache": CONNECTED, "strategy": KINDS["vllm"]}, "implementation", "a connector stores blocks"),
    ],
)
def test_mistakes_are_one_line(
    keys: dict[str, Any], key: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With file, line, key and value, and with what is valid."""
    file = tmp_path / "s.yaml"
    file.write_text(text(**keys))
    assert main(["run", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    lines = enumerate(file.read_text().splitlines(), 1)
    number = next(at for at, one in lines if one.strip().startswith(f"{key}:"))
    assert f"s.yaml:{number + (key == 'kv_cache')}:" in line, "of a section, its first line"
    assert "strategy.kv_cache" in line
    assert message in line


@pytest.mark.parametrize("kind", ["accelerate", "zero_inference"])
def test_real_runs_have_no_such_cache(kind: str) -> None:
    work = {"kind": "inference", "batch_size": 1, "prompt_length": 8, "output_length": 2}
    run = {"name": "r", "model": "opt-125m", "workload": work}
    with pytest.raises(so.InputError, match="transformers has no such implementation; use dynamic or static"):
        request({**run, "strategy": {"kind": kind, "kv_cache": cache("dram")}})
