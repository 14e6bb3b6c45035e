"""Costs of FSDP's hooks and of AdamW, from records with known answers and from the shipped one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simoffload.hardware import Machine, load_platform
from simoffload_calibrate.micro.fit_programs import fit_fsdp
from simoffload_calibrate.micro.profiles import profile_from_micro

TINY = {
    "family": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 1024,
}
WORK = {"kind": "training", "batch_size": 2, "sequence_length": 16}
FORWARD = {"_root_pre_forward": 10, "_pre_forward": 90, "_prefetch_handle": 10, "_post_forward": 80}
UNSHARD = {"_unshard": 70, "handle.pre_unshard": 60, "handle.unshard": 30, "handle.post_unshard": 50}
BACKWARD = {
    "_pre_backward_hook": 80,
    "_post_backward_hook": 150,
    "_prefetch_handle": 10,
    "_post_backward_final_callback": 300,
    "handle.prepare_gradient_for_optim": 6,
    "_reshard": 20,
    "handle.reshard": 100,
    "handle.post_reshard": 1,
    "_reduce_grad": 240,
    "_offload_grad": 40,
    "handle._all_gather_flat_param": 110,
    "handle._use_unsharded_flat_param": 20,
    **UNSHARD,
}


def run(strategy: dict[str, Any] | None, seconds: dict[str, float], **more: Any) -> dict[str, Any]:
    work = {**WORK, **more}
    hooks = {"forward": FORWARD | {"handle._use_unsharded_flat_param": 200}, "backward": BACKWARD}
    one = {"name": "tiny", "model": TINY, "workload": work, "strategy": strategy, "attention": "sdpa"}
    return one | {"ranks": 2, "seconds": seconds} | ({} if strategy is None else {"hooks": hooks})


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_platform("dgx-h200").machine()


def operations(threads: int, *, loops: float, pages: float) -> dict[str, Any]:
    """Times at rates [B/s] of ``threads`` threads, of 50 million numbers."""
    message = {"mul": 2, "lerp": 3, "addcmul": 5, "add": 2, "addcdiv": 4, "sqrt": 2, "div": 2}
    size = 4 * 50e6
    seconds = {name: size * count / loops for name, count in message.items()}
    seconds |= {name: seconds[name] + size / pages for name in ("sqrt", "div")}
    return {"threads": threads, "parameters": 50e6, "seconds": seconds}


def section(runs: list[dict[str, Any]]) -> dict[str, Any]:
    def rate(threads: int, each: float, most: float) -> float:
        return ((threads * each) ** -2 + most**-2) ** -0.5

    rows = [
        operations(threads, loops=rate(threads, 16e9, 100e9), pages=rate(threads, 2e9, 13e9))
        for threads in (1, 2, 4, 8, 16)
    ]
    return {"fsdp": {"operations": rows, "runs": runs}}


def test_costs_are_sums_of_the_functions_that_a_unit_calls(machine: Machine) -> None:
    fsdp = {"kind": "fsdp", "ranks": 2}
    seconds = {"forward": 0.01, "backward": 0.02, "optimizer": 0.001}
    found = fit_fsdp(section([run(fsdp, seconds), run({**fsdp, "cpu_offload": True}, seconds)]), machine)
    rendered = {key: one.value for key, one in found.items()}
    assert rendered["forward_hook"] == "190 us"
    assert rendered["backward_hook"] == "346 us", "240, a third of 300 for each of three units, and 6"
    assert rendered["unshard"] == "230 us", "210 and the views of backward"
    assert rendered["view"] == "20 us", "180 over nine parameters of a Llama layer"
    assert (rendered["gather"], rendered["reshard"], rendered["reduce"]) == ("110 us", "121 us", "240 us")
    assert (rendered["copy_call"], rendered["step_call"]) == ("40 us", "1000 us")
    assert "backward_call" not in rendered, "seen only without FSDP"


def test_rates_of_loops_and_of_new_pages_come_back(machine: Machine) -> None:
    found = fit_fsdp(section([]), machine)
    assert {key: one.value for key, one in found.items()} == {
        "adam_thread": "16 GB/s",
        "adam_limit": "100 GB/s",
        "page_thread": "2 GB/s",
        "page_limit": "13 GB/s",
    }


def test_passes_without_fsdp_give_launches_backward_and_checkpointing(machine: Machine) -> None:
    kept = {"forward": 0.003, "backward": 0.004, "optimizer": 0.0}
    again = {"forward": 0.004, "backward": 0.010, "optimizer": 0.0}
    runs = [run(None, again), run(None, kept, gradient_checkpointing=False)]
    found = fit_fsdp(section(runs), machine)
    assert found["checkpoint"].value == "500 us", "one millisecond for two layers"
    recomputed = float(found["recompute"].value.removesuffix(" us"))
    assert 0 < recomputed < 3000, "six milliseconds for two layers, less their launches"
    assert float(found["operation"].value.removesuffix(" us")) > 0


@pytest.mark.parametrize(
    ("machine_name", "base"), [("fit/h200-2x-l", "dgx-h200"), ("holdout/h100-m", "dgx-h100")]
)
def test_the_shipped_record_gives_the_shipped_profile(repository: Path, machine_name: str, base: str) -> None:
    folder = repository / "validation/measured" / machine_name
    raw = json.loads((folder / "micro.json").read_text())
    texts = profile_from_micro(raw, base, identifier=folder.name)
    assert texts["host.yaml"] == (folder / "host.yaml").read_text()
    host = load_platform(str(folder / "platform.yaml")).host
    assert host.fsdp is not None
    assert host.fsdp.reduce.origin == "measured"
    alone = host.fsdp.gather.origin == "estimate"
    assert alone is (raw["machine"]["gpu"]["count"] == 1), "one rank gathers nothing: another host's is taken"
