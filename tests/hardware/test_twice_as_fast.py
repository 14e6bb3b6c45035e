"""All times come from profiles: on a machine that is twice as fast in everything, each of them halves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.documents import parse_yaml, yaml_text
from simoffload.hardware.unmeasured import completed, shipped_unmeasured
from simoffload.shipped import shipped_folder
from tests.examples import one_in

_QUANTITY = re.compile(r"([0-9.eE+-]+) ?([A-Za-z]*)(?P<unit>B/s|b/s|FLOPS|IOPS|s)")
"""A rate or a time; sizes, work, shares, counts, power and prices do not match."""

LLAMA = {"family": "llama", "num_hidden_layers": 4, "hidden_size": 2048, "num_attention_heads": 16}
LLAMA |= {"num_key_value_heads": 4, "intermediate_size": 8192, "vocab_size": 32000, "dtype": "float16"}
OPT = {"family": "opt", "num_hidden_layers": 4, "hidden_size": 2048, "num_attention_heads": 16}
OPT |= {"ffn_dim": 8192, "vocab_size": 50272, "dtype": "float16"}
EXPERTS = {"family": "mixtral", "num_hidden_layers": 4, "hidden_size": 2048, "num_attention_heads": 16}
EXPERTS |= {"num_key_value_heads": 4, "intermediate_size": 1408, "vocab_size": 32000, "dtype": "bfloat16"}
EXPERTS |= {"num_local_experts": 16, "num_experts_per_tok": 4}
SERVED = {
    "int4": {**LLAMA, "quantization": "int4-g128"},
    "fp8": {**LLAMA, "quantization": "fp8"},
    "experts": EXPERTS,
    "wide experts": {**EXPERTS, "intermediate_size": 14336},
    "experts in MXFP4": {**EXPERTS, "quantization": "mxfp4"},
}
"""Models whose kernels these GPUs do not state, in whole or in part."""
LONG = {"batch_size": 4, "prompt_length": 2048, "output_length": 4}
"""Prompts of more tokens than CUDA graphs are captured for."""
INFERENCE = {"batch_size": 4, "prompt_length": 200, "output_length": 4}
TRAINING = {"kind": "training", "batch_size": 2, "sequence_length": 256}


def _work(strategy: dict[str, Any], workload: dict[str, Any] = INFERENCE, **more: Any) -> dict[str, Any]:
    return {"model": LLAMA, "platform": "dgx-a100", "workload": workload, "strategy": strategy, **more}


ZERO_3 = {"stage": 3, "offload_param": {"device": "cpu"}}
CHECKPOINT = {"kind": "checkpoint", "tier": "raid"}
PROGRAMS = {
    "ZeRO-Inference": _work({"kind": "deepspeed", "weights": "dram"}),
    "attention on the CPU": _work(
        {
            "kind": "deepspeed",
            "weights": "dram",
            "kv_cache": {"tier": "dram", "implementation": "cpu_attention"},
            "ds_config": {"zero_optimization": {**ZERO_3, "offload_param": {"pin_memory": False}}},
        }
    ),
    "Accelerate": _work({"kind": "accelerate", "device_map": "cpu"}),
    "Accelerate, disk": _work({"kind": "accelerate", "device_map": "disk", "offload_folder": "raid"}),
    "Accelerate, files not cached": _work(
        {"kind": "accelerate", "device_map": "disk", "offload_folder": "raid", "page_cache": False}
    ),
    "FlexGen": _work({"kind": "flexgen", "disk": "raid", "cache_gpu_percent": 0}, model=OPT),
    "FlexGen, disk": _work(
        {"kind": "flexgen", "disk": "raid", "cache_gpu_percent": 0, "page_cache": False}, model=OPT
    ),
    "resident": _work({"kind": "transformers"}),
    "resident, cache in host memory": _work({"kind": "transformers", "kv_cache": {"tier": "dram"}}),
    "tensor parallelism": _work({"kind": "transformers", "tensor_parallel_size": 2}),
    "vLLM": _work({"kind": "vllm", "cpu_offload_gb": 0.5}),
    "vLLM, prefix": _work({"kind": "vllm", "kv_cache": {"connector": {"tier": "dram", "prefix": 128}}}),
    **{
        f"vLLM, {name} on {platform}": _work(
            {"kind": "vllm"},
            LONG | {"batch_size": 1 if "experts" in name else 4},
            model=model,
            platform=platform,
        )
        for platform in ("dgx-a100", "rtx-4090-desktop")
        for name, model in SERVED.items()
    },
    "vLLM, read in place": _work({"kind": "vllm", "cpu_offload_gb": 0.5}, LONG, platform="rtx-4090-desktop"),
    "streamed cache": _work(
        {
            "kind": "vllm",
            "kv_cache": {"tier": "raid", "implementation": "streamed"},
        }
    ),
    "ZeRO-Offload": _work({"kind": "deepspeed", "weights": "hbm", "optimizer": "dram"}, TRAINING),
    "ZeRO-Infinity": _work({"kind": "deepspeed", "weights": "raid", "optimizer": "raid"}, TRAINING),
    "training with data and checkpoints": _work(
        {"kind": "deepspeed", "weights": "hbm", "optimizer": "raid"},
        TRAINING,
        checkpoint={"tier": "raid", "interval_steps": 10},
        dataset={"tier": "raid", "sample_size": "16 KiB", "samples": 1000000, "workers": 1},
    ),
    "FSDP": _work({"kind": "fsdp", "ranks": 2, "cpu_offload": True, "cpu_threads": 16}, TRAINING),
    "checkpoint": _work(CHECKPOINT, {"kind": "checkpoint", "stage": 0}),
    "checkpoint, FastPersist": _work(
        CHECKPOINT, {"kind": "checkpoint", "stage": 0, "writer": {"type": "fast", "patched_torch": True}}
    ),
    "checkpoint, unmodified PyTorch": _work(
        CHECKPOINT, {"kind": "checkpoint", "stage": 0, "writer": {"type": "fast"}}
    ),
}


TEXT = ("source", "notes", "name", "about")


def scaled(node: Any) -> Any:
    """Return a file's content with rates doubled and times halved."""
    if isinstance(node, dict):
        return {key: one if key in TEXT else scaled(one) for key, one in node.items()}
    if isinstance(node, list):
        return [scaled(one) for one in node]
    found = _QUANTITY.fullmatch(node) if isinstance(node, str) else None
    if found is None:
        return node
    factor = 0.5 if found["unit"] == "s" else 2.0
    return f"{float(found[1]) * factor!r} {found[2]}{found['unit']}"


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all shipped profiles, twice as fast."""
    folder = tmp_path_factory.mktemp("twice")
    for path in shipped_folder("hardware_profiles").glob("*/*.yaml"):
        other = folder / path.parent.name / path.name
        other.parent.mkdir(exist_ok=True)
        other.write_text(
            yaml_text(scaled(parse_yaml(path.read_text(encoding="utf-8"), name=path.name).data)),
            encoding="utf-8",
        )
    return folder


def times(scenario: dict[str, Any], folder: Path) -> dict[str, float]:
    path = folder / "scenario.yaml"
    path.write_text(yaml_text({"name": "twice as fast", **scenario}), encoding="utf-8")
    found = so.simulate(so.load_scenario(str(path)))
    return {
        key: float(value)
        for key, value in found.metrics().items()
        if key.endswith("_s") and not key.endswith("per_s") and value
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_time_halves_on_a_machine_twice_as_fast(program: str, twice: Path, tmp_path: Path) -> None:
    slow, fast = times(PROGRAMS[program], tmp_path), times(PROGRAMS[program], twice)
    assert slow
    assert {key: slow[key] / fast[key] for key in slow} == pytest.approx(dict.fromkeys(slow, 2.0), rel=1e-3)


ELSEWHERE = "unmeasured/elsewhere"


@pytest.mark.parametrize(
    ("program", "keys"),
    [
        ("Accelerate", {"accelerator.allocation.release_rate": -1, "host.eager.tensor": 1}),
        ("FSDP", {"host.fsdp.step_call": 1, "host.new_memory.page_limit": -1}),
        ("checkpoint", {"host.page_cache.write": -1, "host.checksum": -1}),
    ],
)
def test_sensitivity_has_numbers_of_other_machines(
    program: str, keys: dict[str, int], tmp_path: Path
) -> None:
    (tmp_path / "one.yaml").write_text(yaml_text({"name": "one", **PROGRAMS[program]}), encoding="utf-8")
    rows = so.sensitivity(so.load_scenario(str(tmp_path / "one.yaml"))).rows
    found = {row.number.key: row.elasticity for row in rows if row.number.profile == ELSEWHERE}
    assert {key: found[key] * slower > 0 for key, slower in keys.items()} == dict.fromkeys(keys, True)


@pytest.mark.parametrize(
    ("model", "platform", "keys"),
    one_in(
        2,
        [
            (
                "int4",
                "dgx-a100",
                {"accelerator.compiled.decoded": -1, "accelerator.compiled.weight_latency": 1},
            ),
            (
                "fp8",
                "rtx-4090-desktop",
                {"accelerator.compiled.float8_products": -1, "host.compiled.step": 1},
            ),
            ("experts", "dgx-a100", {"host.compiled.experts": 1, "host.compiled.attention": 1}),
            ("wide experts", "rtx-4090-desktop", {"accelerator.compiled.grouped": -1}),
            ("experts", "rtx-4090-desktop", {"host.compiled.kernel": 1}),
            ("experts in MXFP4", "dgx-a100", {"accelerator.compiled.mxfp4": -1, "host.compiled.mxfp4": 1}),
        ],
    ),
)
def test_sensitivity_has_the_kernels_and_the_thread_of_compiled_serving(
    model: str, platform: str, keys: dict[str, int], tmp_path: Path
) -> None:
    prefill = {"batch_size": 1, "prompt_length": 1500, "output_length": 1}
    scenario = {"name": "one", **PROGRAMS[f"vLLM, {model} on {platform}"], "workload": prefill}
    (tmp_path / "one.yaml").write_text(yaml_text(scenario), encoding="utf-8")
    rows = so.sensitivity(so.load_scenario(str(tmp_path / "one.yaml"))).rows
    found = {row.number.key: row.elasticity for row in rows if row.number.profile == ELSEWHERE}
    assert {key: found[key] * slower > 0 for key, slower in keys.items()} == dict.fromkeys(keys, True)


def test_a_gpu_states_its_own_kernels_number_by_number(tmp_path: Path) -> None:
    def machine(**profiles: Any) -> Any:
        scenario = {"name": "one", **PROGRAMS["vLLM, experts on dgx-a100"], "profiles": profiles}
        (tmp_path / "one.yaml").write_text(yaml_text(scenario), encoding="utf-8")
        return so.load_scenario(str(tmp_path / "one.yaml")).machine

    def inputs(of: Any) -> set[str]:
        return {one.key.rpartition(".")[2] for one in of.inputs() if one.key.startswith("accelerator.comp")}

    number = {"value": 0.5, "origin": "measured", "source": "here", "date": "2026-11-24"}
    shipped, own = machine(), machine(**{"accelerator/a100-40g-sxm": {"compiled": {"float8": number}}})
    assert (shipped.accelerator.kernels.float8.value, own.accelerator.kernels.float8.value) == (1.0, 0.5)
    assert own.accelerator.kernels.weight_latency.value == 4e-6
    assert "float8_products" in inputs(own)
    assert inputs(shipped) - inputs(own) == {"float8"}
    assert "grouped" not in inputs(shipped)  # in the profile of the GPU


def test_a_gpu_that_does_not_state_how_it_reads_host_memory() -> None:
    elsewhere = shipped_unmeasured().accelerator
    gpu = so.load_scenario("ddn/bloom-176b").machine.accelerator
    other = completed(gpu.model_copy(update={"host_reads": None}), elsewhere)
    assert (other.reads.rows.value, other.reads.rate_share.value) == (192, 0.93)


@pytest.mark.parametrize(
    ("program", "part", "number"),
    [
        ("vLLM, experts on dgx-a100", "host thread", {"compiled": {"experts": 65.0}}),
        ("checkpoint", "CPU work", {"checksum": "4.8 GB/s"}),
    ],
)
def test_numbers_of_other_machines_are_estimates_of_the_work(
    program: str, part: str, number: dict[str, Any], tmp_path: Path
) -> None:
    scenario = {"name": "one", **PROGRAMS[program], "profiles": {"elsewhere": {"host": number}}}
    (tmp_path / "one.yaml").write_text(yaml_text(scenario), encoding="utf-8")
    result = so.simulate(so.load_scenario(str(tmp_path / "one.yaml")))
    assert result.provenance.sources[part].evidence == "estimated"


def test_a_host_states_its_own_numbers(tmp_path: Path) -> None:
    """They are then used, and those of another machine are no inputs."""

    def scenario(**profiles: Any) -> Any:
        text = yaml_text({"name": "one", **PROGRAMS["checkpoint"], "profiles": profiles})
        (tmp_path / "one.yaml").write_text(text, encoding="utf-8")
        return so.load_scenario(str(tmp_path / "one.yaml"))

    number = {"value": "1 GB/s", "origin": "measured", "source": "here", "date": "2026-11-24"}
    own, other = scenario(**{"host/dgx-a100-1tib": {"checksum": number}}), scenario()
    assert own.machine.host.checksum_rate.value == 10**9
    assert so.simulate(own).metrics()["save_s"] > so.simulate(other).metrics()["save_s"]
    listed = [
        {one.key for one in each.machine.inputs() if one.profile == "elsewhere"} for each in (own, other)
    ]
    assert listed[1] - listed[0] == {"host.checksum"}
