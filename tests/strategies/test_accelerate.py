"""Hugging Face Accelerate: device maps, bytes of each pass, times and memory, and its place on the command
line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from time import process_time
from typing import Any

import pytest

import simoffload as so
from simoffload.errors import InputError, PlacementError
from simoffload.hardware import load_platform
from simoffload.models import load_model
from simoffload.planning.evaluator import Evaluator
from simoffload.schedule import Schedule
from simoffload.strategies.base import Placement, moving, state_tiers, target
from simoffload.strategies.programs.accelerate import (
    Accelerate,
    AcceleratePlan,
    ModuleTree,
    NewTensors,
    homes_of,
)
from tests.strategies import scenarios
from tests.strategies.scenarios import bytes_of

SCENARIO = """\
name: hooks
model: {family: llama, num_hidden_layers: 8, hidden_size: 1024, num_attention_heads: 8, \
num_key_value_heads: 2, intermediate_size: 4096, vocab_size: 32000, dtype: float16}
platform: PLATFORM
workload: {batch_size: 2, prompt_length: 16, output_length: 3}
strategy: {kind: accelerate, device_map: cpu}
"""
RECORDED = json.loads(Path(__file__).with_name("device_maps.json").read_text(encoding="utf-8"))
LAYER = 2 * (2 * 1024 * 1024 + 2 * 1024 * 256 + 3 * 1024 * 4096 + 2 * 1024)
"""[B] of one layer of this model."""
TABLE = 2 * 32000 * 1024
"""[B] of its embedding, and of its output layer."""
WEIGHTS = 8 * LAYER + 2 * TABLE + 2 * 1024


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hooks.yaml"
    path.write_text(SCENARIO.replace("PLATFORM", "dgx-h200"))
    return path


def loaded(file: Path, *overrides: str) -> Any:
    return so.load_scenario(str(file), overrides=[f"strategy.{one}" for one in overrides])


def tpot(scenario: Any) -> float:
    found: Any = so.simulate(scenario)
    return float(found.tpot_s)


def plan(file: Path, *overrides: str) -> AcceleratePlan:
    found = loaded(file, *overrides).plan()
    assert isinstance(found, AcceleratePlan)
    return found


def decode(found: AcceleratePlan) -> Schedule:
    return found.schedule(found.forward("decode 1", 1, 17))


def count(schedule: Schedule, kind: str) -> int:
    return sum(block.repeat for block in schedule.blocks for op in block.ops if op.kind == kind)


# -- bytes of a pass --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "moved", "tensors"),
    [
        (["device_map=cpu"], WEIGHTS, 8 * 9 + 3),
        (["device_map=cuda"], 0, 0),
        (["device_map=8"], 0, 0),
        (["device_map=3"], 5 * LAYER, 5 * 9),
        (["device_map=0"], 8 * LAYER, 8 * 9),
        (['device_map={"model": 0, "lm_head": "cpu"}'], TABLE, 1),
        (['device_map={"": 0, "model.layers.2.mlp": "cpu"}'], 2 * 3 * 1024 * 4096, 3),
        (['device_map={"": "cpu", "model.layers.2": 0}'], WEIGHTS - LAYER, 8 * 9 + 3 - 9),
    ],
)
def test_a_pass_copies_every_offloaded_tensor_once(
    file: Path, overrides: Sequence[str], moved: int, tensors: int
) -> None:
    schedule = decode(plan(file, *overrides))
    assert bytes_of(schedule, "copy") == moved
    assert count(schedule, "copy") == tensors


def test_a_tied_output_layer_is_copied_again_unless_the_embedding_is_on_the_gpu(file: Path) -> None:
    """``post_forward`` of the embedding removes the tensor from ``tied_params_map``."""
    scenario = so.load_scenario(str(file), overrides=["model.tie_word_embeddings=true"])
    found: Any = scenario.plan()
    assert bytes_of(decode(found), "copy") == WEIGHTS
    assert found.bytes_at("cpu") == WEIGHTS - TABLE, "host memory holds it once"
    table = so.load_scenario(
        str(file),
        overrides=[
            "model.tie_word_embeddings=true",
            'strategy.device_map={"": "cpu", "model.embed_tokens": 0}',
        ],
    )
    kept: Any = table.plan()
    assert bytes_of(decode(kept), "copy") == WEIGHTS - 2 * TABLE
    assert kept.bytes_at(0) == TABLE
    overrides = ["model.tie_word_embeddings=true", 'strategy.device_map={"": 0, "model.embed_tokens": "cpu"}']
    head: Any = so.load_scenario(str(file), overrides=overrides).plan()
    assert (head.bytes_at(0), head.bytes_at("cpu")) == (WEIGHTS - TABLE, 0), "the head is on the main GPU"


# -- times ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [["device_map=cuda"], ["device_map=8"], ["device_map=auto"]])
def test_all_modules_on_one_gpu_are_the_resident_model_to_the_picosecond(
    file: Path, overrides: Sequence[str]
) -> None:
    whole = so.simulate(loaded(file).on("resident"))
    found = so.simulate(loaded(file, *overrides))
    for mine, theirs in zip(found.passes, whole.passes, strict=True):
        assert (mine.name, mine.time_ps) == (theirs.name, theirs.time_ps)
    assert {use.tier: use.needed for use in found.capacity} == {
        use.tier: use.needed for use in whole.capacity
    }
    assert not found.warnings


def test_copies_fixed_times_and_launches_add_up(file: Path) -> None:
    """Nothing overlaps but the kernels with the host work for the next tensor."""
    found = plan(file)
    host, step = found.machine.host, so.simulate(loaded(file)).passes[-1]
    path = found.machine.host_to_device(0, pinned=False)
    sizes = [size for one in found.copied for size in one]
    copies = sum(size / path.curve.rate(size) + path.latency for size in sizes)
    owners = sum(1 for call, _ in found.placed if found.tree.module(call).parameters)
    costs = host.eager_costs
    fixed = len(sizes) * costs.tensor.value + 0.65e-12 * sum(sizes) + owners * costs.hook.value
    timing = found.timings.timing(found.forward("decode 2", 1, 18).batch)
    launches = sum(
        timing.launch_s(module)
        for call, _ in found.placed
        if timing.compute(module := found.tree.module(call))
    )
    costs_of_waiting = host.deepspeed.cold_share.value * copies
    least = copies + fixed + costs_of_waiting + launches + 40 * costs.operation.value
    kernels = sum(timing.compute(found.tree.module(call)) for call, _ in found.placed) * 1e-12
    assert least < step.time_s < least + kernels


@pytest.mark.parametrize(("size", "number", "blocks"), [(1 << 20, 9, 0), (2 << 20, 9, 1), (16 << 20, 9, 9)])
def test_tensors_share_blocks_of_memory(size: int, number: int, blocks: int) -> None:
    """Up to 1 MiB they are part of the cost of a tensor, up to 10 MiB they share 20 MiB."""
    found = NewTensors(size, number)
    assert found.blocks == blocks
    assert found.seconds(1e-3, 10**18) == pytest.approx(1e-3 * blocks)
    assert (found.seconds(0.0, 10**12) > 0) == (blocks > 0)


def test_results_of_a_prompt_need_new_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's cache is emptied after each tensor, whose copy waits for the kernels before it: no release is
    hidden behind a kernel. Allocations may be."""
    prompt = so.load_scenario(str(file), overrides=["workload.prompt_length=8000"])
    found, times = prompt.plan(), []
    assert isinstance(found, AcceleratePlan)
    results = [
        one
        for call, _ in found.placed
        for one in found.new_tensors(found.tree.module(call), found.forward("prefill", 8000, 8000).batch)
    ]
    times.append(so.simulate(prompt).passes[0].time_s)
    monkeypatch.setattr(NewTensors, "seconds", lambda *_: 0.0)
    times.append(so.simulate(prompt).passes[0].time_s)
    released, allocated = (sum(blocks_s(one, *each) for one in results) for each in (RELEASE, ALLOCATE))
    assert released > 0.01
    assert 0.9 * released < times[0] - times[1] < released + allocated


RELEASE, ALLOCATE = (45e-6, 0.51e-12), (50e-6, 0.14e-12)


def blocks_s(one: NewTensors, block: float, byte: float) -> float:
    return one.blocks * block + (one.size * one.number * byte if one.blocks else 0.0)


def test_pinned_weights_are_copied_at_the_pinned_rate(file: Path) -> None:
    pageable, pinned = (tpot(loaded(file, f"pin_memory={word}")) for word in ("false", "true"))
    found = plan(file)
    gap = sum(
        size / found.machine.host_to_device(0, pinned=False).curve.rate(size)
        - size / found.machine.host_to_device(0, pinned=True).curve.rate(size)
        for one in found.copied
        for size in one
    )
    waiting = 1 + found.machine.host.deepspeed.cold_share.value
    assert pageable - pinned == pytest.approx(gap * waiting, rel=1e-3)
    assert any(term.pinned for term in plan(file, "pin_memory=true").held)


def test_weights_that_were_never_written_are_copied_faster(file: Path) -> None:
    """Pinned memory is faster still, and memory that was written is the default."""
    written, never, pinned = (
        tpot(loaded(file, *options)) for options in ((), ("initialized=false",), ("pin_memory=true",))
    )
    assert written == tpot(loaded(file, "initialized=true"))
    assert pinned < never < written
    machine = plan(file).machine
    path, waiting = machine.host_to_device(0, pinned=False), 1 + machine.host.deepspeed.cold_share.value
    gap = sum(size * (1 - 1 / 2.2) / path.curve.rate(size) for one in plan(file).copied for size in one)
    assert written - never == pytest.approx(gap * waiting, rel=2e-3)
    assert "never written" in plan(file, "initialized=false").warnings[0]
    assert not plan(file).warnings


def test_measured_costs_of_a_host_replace_the_estimates(file: Path) -> None:
    found = plan(file)
    host = found.machine.host
    operation = host.deepspeed.operation.value
    assert host.eager is None
    assert host.eager_costs.hook.value == pytest.approx(0.4851 * operation, rel=1e-4)
    assert host.eager_costs.tensor.value == pytest.approx(5.392 * operation, rel=1e-4)
    assert any("Accelerate" in text for text in found.basis.extrapolations)
    now = f"{host.eager_costs.operation.value * 1e6} us"
    costs = {"operation": now, "hook": "1 us", "tensor": "2 us", "all_reduce": "9 us"}
    section = {
        key: {"value": value, "origin": "measured", "source": "a test", "date": "2026-11-22"}
        for key, value in costs.items()
    }
    text = json.dumps(section)
    measured = so.load_scenario(str(file), overrides=[f'profiles={{"host/{host.id}": {{"eager": {text}}}}}'])
    other: Any = measured.plan()
    assert not other.basis.extrapolations
    tensors, owners = count(decode(found), "copy"), 8 * 9 + 3
    saved = tensors * (host.eager_costs.tensor.value - 2e-6)
    saved += owners * (host.eager_costs.hook.value - 1e-6)
    before, after = (tpot(one) for one in (loaded(file), measured))
    assert 0.85 * saved < before - after < saved, "kernels hide a part"


# -- several GPUs -----------------------------------------------------------------------------------


def test_one_process_drives_several_gpus(file: Path) -> None:
    result = so.simulate(loaded(file, "device_map=cuda", "num_gpus=4"))
    assert (result.ranks, result.gpus, result.replicas) == (1, 4, 1)
    found = plan(file, "device_map=cuda", "num_gpus=4")
    *layers, output = homes_of([*(f"model.layers.{number}" for number in range(8)), "lm_head"], found.homes)
    assert layers == [0, 0, 1, 1, 2, 2, 3, 3]
    assert output == 3
    schedule = decode(found)
    assert bytes_of(schedule, "copy") == 3 * 2 * 1024 * 2, "hidden states of two sequences, three times"
    assert schedule.gpus == 4
    alone = so.simulate(loaded(file, "device_map=cuda")).compared_s
    assert result.compared_s is not None
    assert alone is not None
    assert result.compared_s > alone, "one GPU after the other, and hooks"


def test_the_fullest_gpu_counts_and_holds_the_cache_of_its_layers(file: Path) -> None:
    found = plan(file, 'device_map={"": 0, "model.layers.7": 1}', "num_gpus=2")
    one = plan(file, "device_map=cuda")
    cache, all_of_it = (
        next(term.size for term in each.held if term.name == "key-value cache") for each in (found, one)
    )
    assert cache == all_of_it * 7 // 8
    assert next(term.size for term in found.held if term.name == "weights") == WEIGHTS - LAYER


def test_the_cache_of_each_gpu_is_that_of_its_own_layers() -> None:
    """Qwen2.5-7B with a window of 4,096 in the upper 14 of 28 layers, half of them on each GPU."""
    model = {
        "name": "qwen2.5-7b",
        "use_sliding_window": True,
        "sliding_window": 4096,
        "max_window_layers": 14,
    }
    strategy = {"kind": "accelerate", "device_map": "cuda", "num_gpus": 2}
    work = {"platform": "dgx-h100", "batch_size": 4, "prompt_length": 4000, "output_length": 28_000}
    found = scenarios.scenario(model=model, **work, strategy=strategy).plan()
    assert isinstance(found, AcceleratePlan)
    caches = [
        next(one.size for one in terms if one.name == "key-value cache")
        for terms in map(found._on_gpu, range(found.driven))
    ]
    each = 4 * 14 * 2 * 4 * 128 * 2
    assert caches == [each * 31_999, each * 4096]


def test_hidden_states_go_straight_to_the_next_gpu(file: Path) -> None:
    """From GPU 0 to GPU 3 and back over their own ports, not through the ring of all four."""
    found = plan(file, 'device_map={"": 0, "model.layers.4": 3}', "num_gpus=4")
    schedule = decode(found)
    routes = {one.cause.gpus: one.hops[0] for one in schedule.routes if one.cause.kind == "gpu-to-gpu"}
    machine = found.machine
    assert routes == {(one, other): machine.send(one, other).hops for one, other in ((0, 3), (3, 0))}
    assert machine.send(0, 3).hops != machine.gather(3, 4).hops


# -- auto -------------------------------------------------------------------------------------------


def tree() -> ModuleTree:
    return ModuleTree(load_model("llama-3-8b"))


GIB = 1 << 30
LLAMA_LAYER = 2 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
LLAMA_TABLE = 2 * 128256 * 4096


@pytest.mark.parametrize(
    ("room", "layers"),
    [(LLAMA_TABLE, 0), (LLAMA_TABLE + LLAMA_LAYER - 1, 0), (LLAMA_TABLE + 3 * LLAMA_LAYER, 3)],
)
def test_auto_keeps_room_for_the_largest_module_that_is_left(room: int, layers: int) -> None:
    """GPU 0 keeps room for lm_head, the largest, as long as it is not placed."""
    homes = tree().inferred({"0": room + LLAMA_TABLE, "cpu": 100 * GIB})
    assert homes["model.embed_tokens"] == 0
    assert [homes[f"model.layers.{number}"] for number in range(32)] == [0] * layers + ["cpu"] * (32 - layers)
    assert homes["lm_head"] == homes["model.norm"] == "cpu"


def test_auto_places_everything_on_a_gpu_that_just_holds_it() -> None:
    model = load_model("llama-3-8b")
    assert set(tree().inferred({"0": model.weight_bytes, "cpu": GIB}).values()) == {0}
    less = tree().inferred({"0": model.weight_bytes - 1, "cpu": 100 * GIB})
    assert [name for name, home in less.items() if home == "cpu"] == ["model.norm", "lm_head"]


def test_auto_fills_the_cpu_with_room_for_a_module_and_then_the_disk() -> None:
    cpu = 10 * LLAMA_LAYER + LLAMA_TABLE
    homes = tree().inferred({"0": 2 * LLAMA_TABLE + 2 * LLAMA_LAYER, "cpu": cpu})
    layers = [homes[f"model.layers.{number}"] for number in range(32)]
    assert layers == [0] * 2 + ["cpu"] * 10 + ["disk"] * 20
    assert homes["lm_head"] == "disk"
    without = tree().inferred({"0": 2 * LLAMA_TABLE + 2 * LLAMA_LAYER})
    assert "cpu" not in without.values(), "a device that max_memory does not name gets nothing"


def test_auto_fills_two_gpus_evenly() -> None:
    """Each but the last takes an equal part and 1.25 times the embedding, which is larger than a layer."""
    own = tree()
    limits = own.balanced({"0": 80 * GIB, "1": 80 * GIB, "cpu": GIB})
    each = own.model.weight_bytes // 2 + int(1.25 * LLAMA_TABLE)
    assert limits == {"0": each, "1": 80 * GIB, "cpu": GIB}
    homes = own.inferred(limits)
    first = (each - 2 * LLAMA_TABLE) // LLAMA_LAYER
    assert [homes[f"model.layers.{number}"] for number in range(32)] == [0] * first + [1] * (32 - first)
    assert homes["lm_head"] == 1


@pytest.mark.parametrize("case", RECORDED, ids=lambda one: f"{one['family']} {one['max_memory']}")
def test_auto_divides_as_transformers_does(case: dict[str, Any]) -> None:
    """Recorded with transformers 5.23 (``get_balanced_memory``, ``infer_auto_device_map``) in float16.

    Its sizes contain the buffers of rotary embeddings, ours the weights alone. OPT registers its last norm
    before its layers, so that it is placed before them, too.
    """
    own = ModuleTree(load_model({"family": case["family"], **case["sizes"]}))
    balanced = own.balanced(case["max_memory"])
    assert balanced == pytest.approx(case["balanced"], abs=1024)
    if set(case["device_map"].values()) == {"cpu"}:
        with pytest.raises(InputError, match="compute on the CPU"):
            own.inferred(balanced)
        return
    homes = own.inferred(balanced)
    names = [unit.name for unit in own.units if not unit.name.endswith("decoder.final_layer_norm")]
    assert [str(homes[name]) for name in names] == list(homes_of(names, case["device_map"]))


@pytest.mark.parametrize(
    ("stored_as", "keys", "message"),
    [
        ("nf4", ["device_map=4"], "partly on a GPU and partly offloaded"),
        ("int8", ["device_map=4"], "partly on a GPU and partly offloaded"),
        ("nf4-dq", ["device_map=auto", 'max_memory={"0": "0.15 GB", "cpu": "9 GB"}'], "partly on a GPU"),
        ("q4_k_m", ["device_map=cuda"], "a GGUF file in full"),
    ],
)
def test_what_transformers_cannot_keep_quantized_is_refused(
    file: Path, stored_as: str, keys: Sequence[str], message: str
) -> None:
    overrides = [f"model.quantization={stored_as}", *(f"strategy.{one}" for one in keys)]
    with pytest.raises(InputError, match=message) as caught:
        so.load_scenario(str(file), overrides=overrides).plan()
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("home", ["cuda", "cpu", "disk"])
def test_bitsandbytes_may_be_in_one_place(on_disk: Path, home: str) -> None:
    overrides = ["model.quantization=nf4", f"strategy.device_map={home}"]
    assert target(so.load_scenario(str(on_disk), overrides=overrides).plan())


def test_auto_places_a_tied_output_layer_with_the_embedding() -> None:
    own = ModuleTree(load_model("opt-6.7b"))
    assert own.tied
    homes = own.inferred({"0": 4 * GIB, "cpu": 100 * GIB})
    assert homes["lm_head"] == homes["model.decoder.embed_tokens"] == 0
    assert homes["model.decoder.layers.31"] == "cpu"


def test_auto_uses_nine_tenths_of_one_gpu_and_all_of_several(file: Path) -> None:
    own = tree()
    machine = load_platform("dgx-h200").machine(nodes=1)
    hbm = machine.tiers["hbm"]
    free = hbm.capacity - hbm.reserved
    assert Accelerate()._limits(machine)["0"] == int(Fraction(9, 10) * free)
    assert Accelerate(num_gpus=2)._limits(machine) == {
        "0": free,
        "1": free,
        "cpu": int(Fraction(9, 10) * (machine.tiers["dram"].capacity - machine.tiers["dram"].reserved)),
    }
    assert own.model.layer_list == "model.layers"
    assert set(plan(file, "device_map=auto").homes.values()) == {0}


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("bloom-7b1", "transformer.h"),
        ("opt-6.7b", "model.decoder.layers"),
        ("gpt-neox-20b", "gpt_neox.layers"),
    ],
)
def test_layers_have_their_names_in_hugging_face(name: str, layers: str) -> None:
    assert load_model(name).layer_list == layers


def test_many_layers_are_placed_in_time() -> None:
    """20,000 layers in less than a second: no layer looks at all the others."""
    many = ModuleTree(load_model({"name": "llama-3-8b", "num_hidden_layers": 20_000}))
    assert many.units
    assert many.calls
    start = process_time()
    homes = many.inferred({"0": 80 * GIB, "cpu": 1000 * GIB})
    assert many.checked({**homes, "model": 0}, gpus=1)
    assert process_time() - start < 5


# -- disk -------------------------------------------------------------------------------------------


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk.yaml"
    text = SCENARIO.replace("PLATFORM", "h200-8nvme")
    path.write_text(text.replace("device_map: cpu", "device_map: disk, offload_folder: raid4"))
    return path


def test_a_cached_file_is_copied_to_a_tensor_and_then_to_the_gpu(on_disk: Path) -> None:
    schedule = decode(plan(on_disk))
    assert (bytes_of(schedule, "read"), bytes_of(schedule, "copy")) == (0, WEIGHTS)
    assert bytes_of(schedule, "cpu") == 2 * WEIGHTS, "read once and written once"
    assert any("page cache" in text for text in plan(on_disk).warnings)
    assert not plan(on_disk, "page_cache=true").warnings, "the scenario says so itself"


def test_a_cold_file_is_read_while_it_is_copied(on_disk: Path) -> None:
    cold = decode(plan(on_disk, "page_cache=false"))
    assert (bytes_of(cold, "read"), bytes_of(cold, "copy")) == (WEIGHTS, WEIGHTS)
    maps: tuple[list[str], ...] = (["device_map=cpu"], [], ["page_cache=false"])
    memory, cached, drive = (tpot(loaded(on_disk, *more)) for more in maps)
    assert memory < cached < drive
    host = plan(on_disk).machine.host
    rate = host.fsdp_costs.page_limit.value
    assert cached - memory > WEIGHTS / rate, "new pages for every tensor"


def test_files_that_do_not_fit_in_memory_are_read_from_the_drive(on_disk: Path) -> None:
    found = plan(on_disk)
    host = f"host/{found.machine.host.id}"
    capacity = found.machine.host.reserved_bytes + WEIGHTS // 2
    small: Any = so.load_scenario(
        str(on_disk), overrides=[f'profiles={{"{host}": {{"memory_capacity": "{capacity} B"}}}}']
    ).plan()
    assert found.cached
    assert not small.cached
    assert any("every pass reads the drive" in text for text in small.warnings)


def test_memory_on_disk_and_in_memory(on_disk: Path) -> None:
    found = plan(on_disk, "device_map=2")
    sizes = {(term.tier, term.name): term.size for term in found.held}
    assert sizes["raid4", "weights"] == 6 * LAYER
    assert sizes["hbm", "weights"] == WEIGHTS - 6 * LAYER
    assert sizes["dram", "tensor read from disk"] == 2 * 1024 * 4096
    assert sizes["hbm", "offloaded module, largest"] == 2 * 1024 * 4096
    assert target(found) == "raid4"
    assert state_tiers(found) == {"hbm", "raid4"}


# -- places, exports, errors ------------------------------------------------------------------------


def test_placements_move_the_offloaded_modules_only(on_disk: Path) -> None:
    mixed = loaded(on_disk, "device_map=2")
    assert mixed.on("dram").plan().bytes_at("cpu") == 6 * LAYER
    assert target(mixed.on("raid8").plan()) == "raid8"
    assert target(mixed.on("hbm").plan()) == "hbm"
    given = loaded(on_disk, 'device_map={"": "disk", "lm_head": 0}')
    assert given.on("dram").plan().homes == {"": "cpu", "lm_head": 0}
    filled = loaded(on_disk, "device_map=auto", 'max_memory={"0": "0.3 GB", "cpu": "9 GB"}')
    assert target(filled.plan()) == "dram"
    assert filled.on("dram").scenario.strategy == filled.scenario.strategy
    assert filled.on("raid8").plan().bytes_at("disk") == WEIGHTS
    with pytest.raises(PlacementError, match="no optimizer"):
        moving(Accelerate(), Placement("dram", "dram"), mixed.machine)


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (["device_map=cpu"], ["cpu_offload(model, execution_device=0)"]),
        (["device_map=disk"], ['disk_offload(model, "/mnt/raid4", execution_device=0)']),
        (
            ["device_map=auto", 'max_memory={"0": "0.3 GB", "cpu": "0.1 GB"}'],
            [
                "dispatch_model(model, device_map={'model.embed_tokens': 0, 'model.layers.0': 0",
                'offload_dir="/mnt/raid4")',
            ],
        ),
        (
            ["device_map=auto", 'max_memory={"0": "0.3 GB", "cpu": "9 GB"}'],
            ['device_map="auto"', "max_memory={0: 300000000, 'cpu': 9000000000}"],
        ),
        (
            ["device_map=0", "offload_folder=null", "pin_memory=true"],
            [
                "dispatch_model(model, device_map={'model.embed_tokens': 0, 'model.layers': 'cpu'",
                "pin_memory()",
            ],
        ),
        (["device_map=cuda"], ["device_map={'': 0}"]),
    ],
)
def test_the_script_says_what_to_type(on_disk: Path, overrides: Sequence[str], lines: Sequence[str]) -> None:
    (script,) = loaded(on_disk, *overrides).exports().values()
    compile(script, "accelerate.py", "exec")
    for line in lines:
        assert line in script


def test_the_script_names_the_gpus_that_auto_may_use(file: Path) -> None:
    """Without it, ``auto`` fills all GPUs of the machine."""
    (script,) = loaded(file, "device_map=auto", "num_gpus=2").exports().values()
    assert script.startswith("# CUDA_VISIBLE_DEVICES=0,1 python accelerate.py\n")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["device_map=9"], "9 layers on the GPU, but the model has 8; write 0 to 8"),
        (["device_map=gpu"], "must be auto, cuda, cpu, disk, a number of layers"),
        (["device_map=gpu"], 'got "gpu"'),
        (['device_map={"model": 0, "lm_head": "gpu"}'], '"gpu" of "lm_head" is neither'),
        (["device_map=disk"], "offload_folder: .* name the storage tier"),
        (['device_map={"": "cpu"}'], "compute on the CPU"),
        (['device_map={"model": 0}'], "no device for lm_head"),
        (['device_map={"": 0, "modle": 0}'], 'no module "modle"; it has model.embed_tokens'),
        (['device_map={"": 1}'], "num_gpus is 1; raise it to 2"),
        (["num_gpus=9"], "the platform has 8 GPUs"),
        (["device_map=auto", 'max_memory={"gpu": "1 GiB"}'], 'keys must be numbers of GPUs .* got "gpu"'),
        (["device_map=auto", 'max_memory={"1": "1 GiB"}'], "names GPU 1, but num_gpus is 1"),
        (["device_map=auto", 'max_memory={"0": "0.1 GB", "cpu": "9 GB"}'], "no module would be on a GPU"),
        (
            ["device_map=auto", 'max_memory={"0": "0.3 GB"}'],
            "offload_folder: .* or raise strategy.max_memory",
        ),
        (["device_map=cpu", 'max_memory={"0": "1 GiB"}'], "has no effect with device_map: cpu"),
        (["ranks=2"], "ranks: must be 1"),
    ],
)
def test_errors_say_what_is_valid(file: Path, overrides: Sequence[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        loaded(file, *overrides).plan()


def test_one_process_stays_on_one_host(file: Path) -> None:
    two = so.load_scenario(str(file), overrides=["nodes=2", "strategy.num_gpus=9"])
    with pytest.raises(InputError, match=r"strategy\.num_gpus.*the GPUs of one host, which has 8"):
        two.plan()


def test_a_model_that_is_too_large_for_the_gpu_gets_fewer_layers(file: Path) -> None:
    gpu = load_platform("dgx-h200").machine(nodes=1).accelerator
    room = gpu.reserved_bytes + WEIGHTS // 2
    small = so.load_scenario(
        str(file),
        overrides=[
            "strategy.device_map=cuda",
            f'profiles={{"accelerator/{gpu.id}": {{"hbm_capacity": "{room} B"}}}}',
        ],
    )
    found: Any = so.fit(small)
    changes = found.remedies.changes
    (fewer,) = (one for one in changes if one.kind == "setting")
    assert "device_map (layers on the GPU) 8 →" in fewer.description
    assert any(one.description == "weights on dram" for one in changes)


def test_advise_tries_other_homes(file: Path) -> None:
    scenario = loaded(file, "device_map=3")
    changes = list(Evaluator(scenario).changes("setting"))
    assert [one.key for one in changes] == ["auto", "pinned"]
    times = [tpot(scenario.edited(*one.edits)) for one in changes]
    assert times[0] == min(times), "everything fits"


def test_the_verdict_of_auto_names_no_single_place(file: Path) -> None:
    assert so.simulate(loaded(file, "device_map=auto")).placement_words.startswith("{} where device_map auto")
    assert not so.simulate(loaded(file, "device_map=cpu")).placement_words
