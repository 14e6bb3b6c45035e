"""FlexGen: what is placed where, bytes of each pass, times of slots in closed form, memory, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

import simoffload as so
from simoffload.documents import Edit, parse_yaml, yaml_text
from simoffload.errors import InputError, PlacementError
from simoffload.extensions.programs.flexgen import FlexGen, FlexGenPlan
from simoffload.planning.evaluator import Evaluator
from simoffload.scenario import LoadedScenario, resolve
from simoffload.schedule import Schedule
from simoffload.strategies.base import Placement, moving, placements_of, target
from tests.strategies.scenarios import bytes_of

HIDDEN, LAYERS, ROWS = 7168, 48, 50272
"""Of OPT-30B."""
SQUARE = 2 * HIDDEN**2
"""[B] of one projection of attention; a matrix of the MLP has four times as many."""
IN_HOST = {"weights_gpu_percent": 0, "weights_cpu_percent": 100}
CACHE_IN_HOST = {"cache_gpu_percent": 0, "cache_cpu_percent": 100}
HIDDEN_IN_HOST = {"activations_gpu_percent": 0, "activations_cpu_percent": 100}
PUBLISHED = {"weights_gpu_percent": 20, "weights_cpu_percent": 80, **CACHE_IN_HOST, **HIDDEN_IN_HOST}
"""The policy of FlexGen's measurement of OPT-30B, with three GPU batches and attention on the CPU."""


def scenario(
    *,
    model: str = "opt-30b",
    platform: str = "gcp-t4",
    batch: int = 8,
    tokens: int = 4,
    shortcut: str = "on",
    **keys: Any,
) -> LoadedScenario:
    text = {
        "name": "block",
        "model": {"name": model, "dtype": "float16"},
        "platform": platform,
        "workload": {"batch_size": batch, "prompt_length": 512, "output_length": tokens},
        "strategy": {"kind": "flexgen", **keys},
        "engine": {"decode_extrapolation": shortcut, "steady_state": shortcut},
    }
    return resolve(parse_yaml(yaml_text(text), name="s.yaml"))


def plan(**keys: Any) -> FlexGenPlan:
    found = scenario(**keys).plan()
    assert isinstance(found, FlexGenPlan)
    return found


def decode(found: FlexGenPlan) -> Schedule:
    return found.schedule(found.forward("decode 1", 1, 513))


def prefill(found: FlexGenPlan) -> Schedule:
    return found.schedule(found.forward("prefill", 512, 512))


def tpot(**keys: Any) -> float:
    found: Any = so.simulate(scenario(**keys))
    return float(found.tpot_s)


# -- what is where ----------------------------------------------------------------------------------


def test_the_middle_of_each_tensor_decides_its_home() -> None:
    """Of 20 %, attention puts its last matrix, a quarter, on the GPU, and the MLP only vectors."""
    attention, mlp = plan(batch=3, gpu_batches=3, **PUBLISHED).slots.layer
    homes = {one.name: one.home.tier for one in (*attention.tensors, *mlp.tensors) if len(one.shape) > 1}
    assert homes == {
        "q_proj.weight": "dram",
        "k_proj.weight": "dram",
        "v_proj.weight": "dram",
        "out_proj.weight": "hbm",
        "fc1.weight": "dram",
        "fc2.weight": "dram",
    }
    assert attention.loaded_bytes == 3 * SQUARE + 3 * 2 * HIDDEN, "three matrices and their biases"


def test_the_disk_comes_first_then_host_memory_then_the_gpu() -> None:
    (attention, _) = plan(weights_gpu_percent=25, weights_cpu_percent=25, disk="nvme").slots.layer
    matrices = [one.home.tier for one in attention.tensors if len(one.shape) > 1]
    assert matrices == ["nvme", "nvme", "dram", "hbm"]


def weights_of(found: FlexGenPlan) -> int:
    """[B] of all tensors, wherever they are."""
    return sum(count * one.size for one, count in found.slots.tensors)


def test_the_embedding_is_kept_twice() -> None:
    found = plan(**IN_HOST)
    assert weights_of(found) == found.model.weight_bytes + 2 * ROWS * HIDDEN


def test_four_bits_take_0_5625_bytes() -> None:
    (attention, _) = plan(compress_weight=True).slots.layer
    first = attention.tensors[0]
    assert first.sizes == (HIDDEN**2 // 2, HIDDEN**2 // 16)
    assert first.size == 0.5625 * HIDDEN**2


# -- bytes of a pass --------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [1, 4])
def test_the_whole_cache_comes_and_the_new_token_goes(batches: int) -> None:
    found = plan(gpu_batches=batches, **CACHE_IN_HOST)
    token = 8 * 2 * 2 * HIDDEN * LAYERS
    assert bytes_of(decode(found), "copy", "cache") == 513 * token + token
    assert bytes_of(prefill(found), "copy", "cache") == 512 * token
    # The host thread pins it first: each byte is read and written once. Vectors go through no such copy.
    assert bytes_of(decode(found), "cpu") == 2 * 513 * token


def test_the_cpu_casts_the_cache_before_it_attends_to_it() -> None:
    schedule = decode(plan(gpu_batches=2, cpu_attention=True, **CACHE_IN_HOST))
    elements = 8 * 2 * HIDDEN * LAYERS
    assert bytes_of(schedule, "cpu", "casting") == 512 * elements * (2 + 4)
    assert bytes_of(schedule, "cpu", "attention") == 513 * elements * 4
    assert bytes_of(schedule, "copy", "cache") == elements * 2, "only the new token"
    vectors = 8 * HIDDEN * LAYERS * 4
    assert bytes_of(schedule, "copy", "queries") == 3 * vectors
    assert bytes_of(schedule, "copy", "result") == vectors


def test_unpinned_matrices_are_pinned_on_the_way() -> None:
    found = plan(pin_weight=False, **IN_HOST)
    matrices = sum(count * one.size for one, count in found.slots.tensors if len(one.shape) > 1)
    assert bytes_of(decode(found), "cpu", "pinning weights") == 2 * matrices
    assert bytes_of(decode(found), "copy", "weights") == weights_of(found)


def test_four_threads_copy_at_once() -> None:
    """Keys and values of the next layer come from the disk while those of the last token go there."""
    found = plan(batch=1, cache_gpu_percent=0, cache_cpu_percent=0, disk="nvme")
    schedule = decode(found)
    copied = [
        (schedule.labels[op.stream], op.size // (2 * HIDDEN))
        for op in schedule.blocks[1].ops
        if op.kind == "copy" and "thread" in schedule.labels[op.stream]
    ]
    assert copied == [(f"copy thread {one}", tokens) for one, tokens in enumerate((513, 513, 1, 1))]


def test_drives_do_not_read_and_write_what_is_in_the_page_cache() -> None:
    keys = {"weights_gpu_percent": 0, "cache_gpu_percent": 0, "activations_gpu_percent": 0}
    cached = plan(disk="nvme", page_cache=True, **keys)
    assert bytes_of(decode(cached), "read") == bytes_of(decode(cached), "write") == 0


# -- times ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mapped", "together"), [(1.54e9, 2 * 1.54e9), (4e9, 4.46e9)])
def test_a_mapped_file_is_read_at_the_rate_of_the_host_as_far_as_the_drive_permits(
    mapped: float, together: float
) -> None:
    """Keys and values are two files that are read at a time, and then share the link to the GPU."""
    given = so.load_scenario(
        "flexgen/opt-6.7b-cache-on-disk",
        overrides=[
            "workload.output_length=2",
            f'profiles."host/gcp-n1-highmem-32".mapped_read.value={mapped / 1e9} GB/s',
        ],
    )
    layer = 2 * 64 * 257 * 4096 * 2
    found: Any = so.simulate(given)
    link = given.machine.host_to_device(0, pinned=True).curve.rate(layer // 2)
    assert found.tpot_s == pytest.approx(32 * layer * (1 / together + 1 / link), rel=0.02)


def test_all_on_the_gpu_reads_the_weights_once_per_token() -> None:
    keys: dict[str, Any] = {"model": "opt-6.7b", "batch": 1}
    found = plan(**keys)
    bound = found.model.weight_bytes / found.machine.accelerator.hbm_rate
    resident: Any = so.simulate(scenario(**keys).on("resident"))
    apart = tpot(**keys, overlap=False)
    assert bound < apart < 1.15 * bound
    assert apart == pytest.approx(resident.tpot_s, rel=0.05)
    assert apart < tpot(**keys), "no slot ends with a synchronization"
    assert not bytes_of(decode(found), "copy")


def test_a_slot_takes_as_long_as_the_next_weights() -> None:
    """Slots of one token are limited by the link: a step takes all bytes at its rate, and the waits."""
    keys: dict[str, Any] = {"model": "opt-175b", "platform": "dgx-2", "batch": 1, **IN_HOST}
    found = plan(**keys)
    rate = found.machine.host_to_device(0, pinned=True).curve.rate(1 << 30)
    assert tpot(**keys) == pytest.approx(weights_of(found) / rate, rel=0.01)


def test_copies_without_overlap_add_up() -> None:
    keys: dict[str, Any] = {"model": "opt-6.7b", "batch": 1}
    apart, together = tpot(**keys, **IN_HOST, overlap=False), tpot(**keys, **IN_HOST)
    kernels = tpot(**keys)
    assert apart == pytest.approx(together + kernels, rel=0.05)


def test_decode_steps_that_are_skipped_are_those_that_are_simulated() -> None:
    """Also where only the work of the CPU grows with the context."""
    keys: dict[str, Any] = {"batch": 6, "tokens": 24, "gpu_batches": 3, "cpu_attention": True, **PUBLISHED}
    found: Any = so.simulate(scenario(**keys))
    full: Any = so.simulate(scenario(**keys, shortcut="off"))
    assert found.tpot_s == pytest.approx(full.tpot_s, rel=1e-4)
    assert found.passes[-1].time_ps > found.passes[1].time_ps, "the cache grows"


# -- memory -----------------------------------------------------------------------------------------


def test_memory_of_the_published_policy() -> None:
    """144 sequences of OPT-30B fit into 208 GB, and no GPU batch of 48 more."""
    policy = {**PUBLISHED, "cpu_attention": True, "tokens": 32}
    terms = {
        term.name: term.size for term in plan(batch=144, gpu_batches=3, **policy).held if term.tier == "dram"
    }
    assert terms["key-value cache"] == 144 * 543 * 2 * 2 * HIDDEN * LAYERS
    assert terms["buffers of the copy threads"] == 8 << 30
    assert terms["workspace of attention on the CPU"] == 48 * 543 * 2 * 4 * HIDDEN
    assert terms["hidden states"] == 144 * 512 * 2 * HIDDEN
    assert so.fit(scenario(batch=144, gpu_batches=3, **policy)).fits
    assert not so.fit(scenario(batch=192, gpu_batches=4, **policy)).fits


def test_compressed_states_and_files() -> None:
    keys = {"batch": 16, "gpu_batches": 2, "compress_cache": True, "compress_weight": True}
    found = plan(**keys, weights_gpu_percent=0, disk="nvme", **CACHE_IN_HOST)
    terms = {(term.tier, term.name): term for term in found.held}
    assert terms["dram", "key-value cache"].size == 16 * 515 * 2 * HIDDEN * LAYERS * 0.5625
    assert not terms["dram", "key-value cache"].pinned
    assert (
        terms["nvme", "weights"].size == found.slots.weight_bytes("nvme") < 0.6 * found.model.num_parameters
    )
    assert terms["hbm", "weights written in full"].size == 8 * SQUARE, "the MLP"


@pytest.mark.parametrize("home", ["gpu", "cpu"])
def test_heads_are_filled_up_to_whole_groups_in_four_bits(home: str) -> None:
    """Those of OPT-2.7B have 80 elements, which take two groups of 64, of 36 bytes each."""
    placed = CACHE_IN_HOST if home == "cpu" else {}
    found = plan(model="opt-2.7b", compress_cache=True, **placed)
    token = 8 * 2 * 32 * 32 * 2 * 36
    tier = {"gpu": "hbm", "cpu": "dram"}[home]
    terms = {(term.tier, term.name): term.size for term in found.held}
    assert terms[tier, "key-value cache"] == 515 * token
    moved = 513 * token + token if home == "cpu" else 0
    assert bytes_of(decode(found), "copy", "cache") == moved
    on_cpu = plan(model="opt-2.7b", compress_cache=True, cpu_attention=True, **CACHE_IN_HOST)
    workspace = {term.name: term.size for term in on_cpu.held}["workspace of attention on the CPU"]
    assert workspace == 2 * 8 * 515 * 32 * 128 * 4
    elements, filled = 8 * 513 * 2 * 32 * 32 * 80, 8 * 513 * 2 * 32 * 32 * 128
    assert bytes_of(decode(on_cpu), "cpu", "expanding") == 23 * filled + 8 * elements


# -- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "where", "words"),
    [
        ({"weights_cpu_percent": 1}, "weights_cpu_percent", "more than 100"),
        ({"cache_gpu_percent": 60, "cache_cpu_percent": 41}, "cache_cpu_percent", "more than 100"),
        ({"weights_gpu_percent": 90}, "disk", "10 % of the weights"),
        (
            {"activations_gpu_percent": 50, "activations_cpu_percent": 50},
            "activations_gpu_percent",
            "one place",
        ),
        (
            {"compress_cache": True, "cache_gpu_percent": 50, "cache_cpu_percent": 50},
            "compress_cache",
            "in one",
        ),
        ({"overlap": False, "disk": "nvme", "weights_gpu_percent": 0}, "overlap", "set it to true"),
        ({"gpu_batches": 3}, "gpu_batches", "not a multiple of 3"),
        ({"weights_gpu_percent": 101}, "weights_gpu_percent", "100"),
        ({"disk": "tape"}, "disk", "tape"),
    ],
)
def test_settings_that_flexgen_refuses(keys: dict[str, Any], where: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        plan(**keys)
    (problem,) = caught.value.problems
    assert where in str(problem)
    assert words in str(problem)


@pytest.mark.parametrize(("model", "words"), [("llama-2-7b", "only OPT"), ("opt-350m", "only OPT")])
def test_only_opt(model: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plan(model=model)


def test_only_float16() -> None:
    with pytest.raises(InputError, match="set it to float16"):
        so.load_scenario("flexgen/opt-30b", overrides=["model.dtype=float32"]).plan()


def test_the_command_line() -> None:
    keys = {**PUBLISHED, "gpu_batches": 4, "cpu_attention": True, "pin_weight": False}
    text = scenario(batch=8, **keys).exports()["flexgen.sh"]
    assert " ".join(text.replace("\\\n", "").split()) == (
        "python3 -m flexllmgen.flex_opt --model facebook/opt-30b --prompt-len 512 --gen-len 4 "
        "--gpu-batch-size 2 --num-gpu-batches 4 --percent 20 80 0 100 0 100 "
        "--cpu-cache-compute --pin-weight 0"
    )


def test_other_tiers_move_all_weights() -> None:
    found = scenario(**PUBLISHED)
    strategy, machine = found.scenario.strategy, found.machine
    assert placements_of(strategy, machine).now() == Placement("dram")
    assert target(plan(disk="nvme", weights_gpu_percent=0)) == "nvme"
    for tier in ("hbm", "dram", "nvme"):
        assert target(found.on(tier).plan()) == ("dram" if tier == "dram" else tier)
    with pytest.raises(PlacementError):
        moving(strategy, Placement("dram", "dram"), machine)


def test_settings_to_try() -> None:
    evaluator = Evaluator(scenario(**PUBLISHED, pin_weight=False, overlap=False))
    keys = [one.key for one in evaluator.changes("setting")]
    assert keys == ["weights-gpu-0", "weights-gpu-40", "attention-cpu", "overlap", "pin-weight"]
    assert [one.same_work for one in evaluator.changes("precision")] == [False, False]


def test_a_larger_block_has_more_gpu_batches() -> None:
    """Of the same size, as long as the number of sequences allows."""
    strategy = FlexGen(gpu_batches=3)
    assert strategy.sizes(144).unit == 48
    assert strategy.sizes(144).batch(288) == (
        Edit.at("workload.batch_size", 288),
        Edit.at("strategy.gpu_batches", 6),
    )
    assert strategy.sizes(144).batch(144) == (Edit.at("workload.batch_size", 144),)
    assert strategy.sizes(144).batch(1)[1] == Edit.at("strategy.gpu_batches", 1)
    assert FlexGen().sizes(144).unit == 1
    assert FlexGen().sizes(144).batch(145) == (Edit.at("workload.batch_size", 145),)
