"""The smallest changes that make a scenario fit, each of which was tried."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import simoffload
from simoffload.documents import parse_yaml, yaml_text
from simoffload.errors import InputError
from simoffload.planning.answers import fit
from simoffload.results.capacity import Change
from simoffload.scenario import read_scenario, resolve

PROFILES = Path(__file__).parents[2] / "hardware_profiles"


def changes(name: str, *overrides: str) -> dict[str, tuple[str, ...]]:
    """What the changes say and set. Each makes the scenario fit, read anew with what it sets."""
    found = simoffload.smallest_changes(read_scenario(name, overrides=overrides))
    for change in found:
        assert fit(changed(name, *overrides, change=change)).fits, change.description
        assert change.uses == fit(changed(name, *overrides, change=change)).capacity
    return {change.description: change.assignments for change in found}


def changed(name: str, *overrides: str, change: Change) -> simoffload.LoadedScenario:
    return read_scenario(name, overrides=(*overrides, *change.assignments))


def fits(name: str, *overrides: str) -> bool:
    return fit(read_scenario(name, overrides=overrides)).fits


def test_bloom_176b_in_hbm_goes_elsewhere_or_to_three_machines() -> None:
    rendered = changes("ddn/bloom-176b", "strategy.weights=gpu")
    assert rendered == {
        "weights on dram": ("strategy.weights=dram",),
        "weights on raid": ("strategy.weights=raid",),
        "weights on nfs": ("strategy.weights=nfs",),
        "weights on ai400x2": ("strategy.weights=ai400x2",),
        "1 → 3 machines, 8 → 24 GPUs": ("nodes=3", "strategy.ranks=24"),
        "70 of 70 layers on 8 GPUs (accelerate), stored as int4-g128 (answers change)": (
            'model={"name": "bloom-176b", "quantization": "int4-g128"}',
            'strategy={"kind": "accelerate", "num_gpus": 8, "device_map": "cuda"}',
            "workload.batch_size=128",
        ),
        "vLLM on 8 GPUs with cpu_offload_gb 14": (
            'strategy={"kind": "vllm", "tensor_parallel_size": 8, "cpu_offload_gb": 14}',
            "workload.batch_size=128",
        ),
    }
    assert not fits("ddn/bloom-176b", "strategy.weights=gpu", "nodes=2", "strategy.ranks=16")


def test_24t_parameters_on_four_drives_need_thirteen_or_four_machines() -> None:
    """48.3 TB on drives of 3.84 TB: 12.6 of them."""
    rendered = changes("ddn/bloom-mod-2", "strategy.weights=raid")
    drives = 'profiles."raid/raid0-4x-pm1733-3.84tb".count'
    assert rendered["drives of each machine in raid 4 → 13"] == (f"{drives}=13",)
    assert rendered["1 → 4 machines, 8 → 32 GPUs"] == ("nodes=4", "strategy.ranks=32")
    assert not fits("ddn/bloom-mod-2", "strategy.weights=raid", f"{drives}=12")


def test_memory_grows_in_steps_of_64_gib_to_what_is_needed() -> None:
    host = "profiles.host/dgx-a100-1tib"
    overrides = ("strategy.weights=dram", f"{host}.memory_maximum=4 TiB")
    rendered = changes("ddn/bloom-mod-1", *overrides)
    size = f"{host}.memory_capacity"
    assert rendered["DRAM of each machine 1 TiB → 3,200 GiB (it needs 3.07 TiB)"] == (f'{size}="3200 GiB"',)
    assert not fits("ddn/bloom-mod-1", *overrides, f"{size}=3136 GiB")


def test_no_more_memory_than_the_board_takes(tmp_path: Path) -> None:
    """A last step may be smaller; a host that does not say gets what it needs."""
    host, weights = "profiles.dgx-a100-1tib.memory_maximum", "strategy.weights=dram"
    exactly = changes("ddn/bloom-mod-1", weights, f"{host}=3150 GiB")
    assert "DRAM of each machine 1 TiB → 3,150 GiB (it needs 3.07 TiB)" in exactly
    text = (PROFILES / "host/dgx-a100-1tib.yaml").read_text()
    (tmp_path / "host.yaml").write_text(re.sub("memory_maximum.*\n", "", text))
    text = (PROFILES / "platform/dgx-a100.yaml").read_text()
    (tmp_path / "platform.yaml").write_text(text.replace("host: dgx-a100-1tib", "host: ./host.yaml"))
    text = (PROFILES.parent / "scenarios/ddn/bloom-mod-1.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("platform: dgx-a100", "platform: ./platform.yaml"))
    unknown = changes(str(tmp_path / "mine.yaml"), weights)
    (description,) = (one for one in unknown if one.startswith("DRAM of each machine"))
    assert description.endswith(
        "(it needs 3.07 TiB; host/dgx-a100-1tib has no memory_maximum, so check the limit of its board)"
    )
    scenario = read_scenario("ddn/bloom-mod-1", overrides=[weights])
    result = fit(scenario)
    assert result.remedies is not None
    assert not [one for one in result.remedies.changes if "DRAM" in one.description]
    assert result.all_warnings[-1] == (
        "more host memory is not enough: it needs 3.07 TiB, and host/dgx-a100-1tib supports no more than "
        "2 TiB"
    )


def test_what_lacks_on_two_tiers_grows_at_once() -> None:
    rendered = changes(
        "ddn/bloom-mod-2", "strategy.weights=raid", "profiles.dgx-a100-1tib.memory_capacity=256 GiB"
    )
    memory = "DRAM of each machine 256 GiB → 320 GiB (it needs 318 GiB)"
    buffer = "strategy.ds_config.zero_optimization.offload_param.buffer_size"
    assert rendered == {
        f"{memory} and drives of each machine in raid 4 → 13": (
            'profiles.dgx-a100-1tib.memory_capacity="320 GiB"',
            'profiles."raid/raid0-4x-pm1733-3.84tb".count=13',
        ),
        "weights on nfs, and buffer_size 4,000,000,000 → 2,000,000,000": (
            "strategy.weights=nfs",
            f"{buffer}=2000000000",
        ),
    }


def test_the_batch_is_cut_to_the_largest_that_fits() -> None:
    rendered = changes("ddn/bloom-176b", "workload.batch_size=100")
    assert rendered["batch 100 → 57 on each GPU"] == ("workload.batch_size=57",)
    assert not fits("ddn/bloom-176b", "workload.batch_size=58")
    assert rendered["output_length 100 → 53 tokens"] == ("workload.output_length=53",)


def test_training_accumulates_what_the_batch_loses() -> None:
    """Of 40 sequences 19 fit; 10 is the largest part that leaves 40 in a step."""
    off = "workload.gradient_checkpointing=false"
    rendered = changes("xinnor/llama-1b", off, "workload.batch_size=40")
    assert rendered == {
        "gradient_checkpointing set": ("workload.gradient_checkpointing=true",),
        "batch 40 → 19 on each GPU": ("workload.batch_size=19",),
        "batch 40 → 10 on each GPU, 1 → 4 micro-steps in a step": (
            "workload.batch_size=10",
            "workload.gradient_accumulation_steps=4",
        ),
        "sequence_length 4,096 → 1,991 tokens": ("workload.sequence_length=1991",),
    }


def test_batch_sizes_in_ds_config_follow() -> None:
    sizes = ("workload.batch_size=64", "strategy.ds_config.train_batch_size=128")
    rendered = changes("zenflow/qwen2.5-3b", *sizes)
    freed = "strategy.ds_config.train_batch_size=auto"
    assert rendered["batch 64 → 9 on each GPU"] == ("workload.batch_size=9", freed)
    assert rendered["batch 64 → 8 on each GPU, 1 → 8 micro-steps in a step"] == (
        "workload.batch_size=8",
        "workload.gradient_accumulation_steps=8",
        freed,
        "strategy.ds_config.gradient_accumulation_steps=auto",
    )


def test_settings_are_those_that_the_largest_parts_name() -> None:
    """Five buffers of 2e10 elements on each of eight ranks are 1.46 TiB."""
    section = "strategy.ds_config.zero_optimization.offload_param"
    rendered = changes("ddn/bloom-7b1", f"{section}.buffer_size=2e10")
    assert {key: value for key, value in rendered.items() if "buffer" in key} == {
        "buffer_size 20,000,000,000 → 10,000,000,000": (f"{section}.buffer_size=10000000000",),
        "offload_param.buffer_count 5 → 3": (f"{section}.buffer_count=3",),
    }


def test_single_precision_becomes_half_of_it() -> None:
    alone = ("strategy.weights=hbm", "strategy.ranks=1", "workload.batch_size=160")
    rendered = changes("ddn/bloom-7b1", "model={name: bloom-7b1, dtype: float32}", *alone)
    assert rendered["float32 → bfloat16"] == ("model.dtype=bfloat16",)
    assert rendered["1 → 3 GPUs"] == ("strategy.ranks=3",)


def test_adapters_train_beside_weights_in_four_bit() -> None:
    lora = "strategy.lora={r: 16, target_modules: [query_key_value]}"
    on_gpus = ("strategy.weights=hbm", "strategy.optimizer=hbm", "workload.sequence_length=512")
    rendered = changes("training/bloom-176b", lora, *on_gpus)
    assert rendered["frozen weights in nf4 (QLoRA)"] == ('model.quantization="nf4-dq"',)


def test_where_no_change_is_enough_two_are_tried() -> None:
    """24T parameters are too many for four drives, and 107 tokens of cache for the GPUs."""
    rendered = changes("ddn/bloom-mod-2", "strategy.weights=raid", "workload.output_length=100")
    shorter = {
        f"weights on {tier}, and output_length 100 → 18 tokens": (
            f"strategy.weights={tier}",
            "workload.output_length=18",
        )
        for tier in ("nfs", "ai400x2")
    }
    assert rendered == shorter | {
        "key-value cache on dram, attention on the CPU, and 1 → 4 machines, 8 → 32 GPUs": (
            "strategy.kv_cache.tier=dram",
            "strategy.kv_cache.implementation=cpu_attention",
            "nodes=4",
            "strategy.ranks=32",
        )
    }


def test_checkpoints_are_kept_in_smaller_number_or_elsewhere() -> None:
    rendered = changes("checkpoint/mlperf-1t", "workload.keep=10")
    assert rendered["keep 10 → 8"] == ("workload.keep=8",)
    assert rendered["checkpoints on raid"] == ("strategy.tier=raid",)
    assert rendered["capacity of pfs 140 TB → 166 TB (it needs 165 TB)"] == (
        'profiles.pfs/ddn-ai400x2.capacity="166 TB"',
    )


def test_what_fits_needs_no_change() -> None:
    scenario = read_scenario("ddn/bloom-176b")
    assert simoffload.smallest_changes(scenario) == ()
    assert fit(scenario).remedies is None


def test_what_deepspeed_refuses_is_no_question_of_room() -> None:
    small = "strategy.ds_config.zero_optimization.offload_param.buffer_size=1000"
    with pytest.raises(InputError, match="More elements"):
        simoffload.smallest_changes(read_scenario("ddn/bloom-7b1", overrides=[small]))


def test_a_result_says_what_is_left_where_it_is_least() -> None:
    scenario = read_scenario("ddn/bloom-176b", overrides=["strategy.weights=gpu"])
    data = fit(scenario).to_dict()["changes"]
    in_dram = fit(read_scenario("ddn/bloom-176b", overrides=["strategy.weights=dram"]))
    assert data[0] == {
        "kind": "tier",
        "description": "weights on dram",
        "set": ["strategy.weights=dram"],
        "quality": "",
        "headroom_bytes": {use.tier: use.headroom for use in in_dram.capacity},
    }


@pytest.mark.parametrize(
    ("model", "strategy", "found"),
    [
        (
            "llama-3.1-405b",
            {"kind": "transformers", "tensor_parallel_size": 2},
            "1 → 2 machines, 2 → 16 GPUs",
        ),
        ("llama-3.1-405b", {"kind": "accelerate", "device_map": "cuda", "num_gpus": 2}, None),
        ("gpt-oss-120b", {"kind": "transformers"}, None),
    ],
    ids=["all GPUs of the machines", "one process has one host", "one machine has enough GPUs"],
)
def test_machines_are_filled_before_others_are_bought(
    model: str, strategy: dict[str, Any], found: str | None
) -> None:
    """811 GB need 16 GPUs of 80 GB; 64 GB and a cache of 400 sequences more than one."""
    text = {
        "name": "machines",
        "model": model,
        "platform": "dgx-h100",
        "workload": {"batch_size": 1 if "llama" in model else 400, "prompt_length": 4096, "output_length": 8},
        "strategy": strategy,
    }
    scenario = resolve(parse_yaml(yaml_text(text), name="m.yaml"))
    made = simoffload.smallest_changes(scenario)
    assert [one.description for one in made if one.kind == "machines"] == ([found] if found else [])


THIRTEEN_B = """
name: 13b
model: {model}
platform: dgx-a100-80g
nodes: 8
workload: {{kind: training, batch_size: {batch}, sequence_length: {length}, gradient_checkpointing: false}}
strategy:
  kind: deepspeed
  ranks: 64
  ds_config: {{bf16: {{enabled: true}}, zero_optimization: {{stage: 3}}}}
"""


@pytest.mark.parametrize(("model", "length", "proposed"), [("llama-2-13b", 4096, 1), ("opt-13b", 2048, 0)])
def test_rms_norms_in_one_kernel_make_training_fit(
    tmp_path: Path, model: str, length: int, proposed: int
) -> None:
    """13 billion parameters on 64 A100, 2 x 4,096 tokens each, as torchtitan runs it; OPT has LayerNorm."""
    path = tmp_path / "13b.yaml"
    batch = next(count for count in range(2, 20) if _written(path, model, count, length))
    assert (batch == 2) == bool(proposed)
    found = {key: value for key, value in changes(str(path)).items() if key.startswith("norms fused (")}
    assert [*found.values()] == [("model.norms=fused",)] * proposed


def _written(path: Path, model: str, batch: int, length: int) -> bool:
    """Write a scenario, and return whether it does not fit."""
    path.write_text(THIRTEEN_B.format(model=model, batch=batch, length=length))
    return not fits(str(path))
