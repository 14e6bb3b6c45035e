"""Real DeepSpeed trains on this machine's CPU: what is recorded, and how much the optimizer's drive moves.

Times mean nothing here; bytes do not depend on the clock. They are worked out from how DeepSpeed swaps: of a
sub-group, master, momentum and variance [4 B each] are read and written whole in every step, padded to the
drive's alignment; gradients [4 B] of tensors of 1 MiB and more once each, while smaller ones stay in memory.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.calibration.real_runs import Recorded, want

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]

HIDDEN, FFN, LAYERS, VOCABULARY, MICRO_STEPS, STEPS = 512, 2048, 2, 1024, 2, 3
ALIGNMENT = 256  # numbers of 32 bits in the 1024 B that one thread of asynchronous I/O is given at least
MODEL = {"family": "opt", "hidden_size": HIDDEN, "ffn_dim": FFN, "num_hidden_layers": LAYERS,
         "num_attention_heads": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 254,
         "dtype": "bfloat16"}  # fmt: skip
CASES = {
    "all on the CPU": (1, {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}),
    "optimizer on a drive": (1, {"offload_optimizer": {"device": "nvme"}}),
    "optimizer on a drive, two ranks": (2, {"offload_optimizer": {"device": "nvme"}}),
}


def big_gradients(ranks: int) -> int:
    """Numbers, on one rank, in slices of matrices of which 1 MiB of gradients or more is left."""
    matrices = [VOCABULARY * HIDDEN, *(LAYERS * [*(4 * [HIDDEN**2]), *(2 * [HIDDEN * FFN])])]
    return sum(number // ranks for number in matrices if number // ranks >= (1 << 20) // 4)


WORK = {"kind": "training", "batch_size": 1, "sequence_length": 8, "steps": STEPS,
        "gradient_accumulation_steps": MICRO_STEPS}  # fmt: skip
want({
    name: {"model": MODEL, "workload": WORK, "strategy": {"ranks": ranks, "ds_config": {
        "zero_optimization": {"stage": 3, **zero}}}}
    for name, (ranks, zero) in CASES.items()
})  # fmt: skip


@pytest.fixture(params=CASES)
def run(request: pytest.FixtureRequest, recorded_runs: Recorded) -> dict[str, Any]:
    """Return the record of one run."""
    return recorded_runs.runs[request.param]


def test_every_micro_step_has_its_three_passes(run: dict[str, Any]) -> None:
    expected = [
        (name, step, micro_step)
        for step in range(STEPS)
        for micro_step in range(MICRO_STEPS)
        for name in ("forward", "backward", "optimizer")
    ]
    assert [(one["name"], one["repetition"], one["micro_step"]) for one in run["passes"]] == expected


def test_threads_are_shared_among_the_ranks(run: dict[str, Any]) -> None:
    cores = len(os.sched_getaffinity(0))
    threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, cores // run["ranks"]))
    assert run["threads"] == {"OMP_NUM_THREADS": str(threads), "torch": threads, "cores": cores}


def test_the_parts_of_a_step_are_timed(run: dict[str, Any]) -> None:
    traces = run["traces"]
    assert set(traces) == {
        "forward, first micro-step",
        "backward parts, first micro-step",
        "forward",
        "backward parts",
        "optimizer parts",
    }
    step = traces["optimizer parts"]
    assert step["parts"]["optimizer_step"]["count"] == 1, "one sub-group"
    assert step["parts"]["step"]["seconds"] <= step["host_seconds"] <= step["seconds"]
    swaps = {
        name: row["count"] for name, row in step["parts"].items() if "swap_in" in name or "swap_out" in name
    }
    drive = "drive" in run["name"]
    assert swaps == ({
        "optimizer_states_and_gradient_swap_in": 1,
        "optimizer_states_and_gradient_swap_out": 1,
        "reassign_or_swap_out_partitioned_parameters": 1,
    } if drive else {"reassign_or_swap_out_partitioned_parameters": 1})  # fmt: skip
    first, last = (traces[f"backward parts{more}"]["parts"] for more in (", first micro-step", ""))
    tensors = 2 + 16 * LAYERS + 2  # embeddings, a layer's six linear layers and two norms, the last norm
    assert first["add_grad_to_ipg_bucket"]["count"] == last["add_grad_to_ipg_bucket"]["count"] == tensors
    assert "offload_grad_partition_at_boundary" not in first
    assert last["offload_grad_partition_at_boundary"]["count"] == tensors


def test_the_drive_moves_sixteen_bytes_per_parameter_each_way(run: dict[str, Any]) -> None:
    last = [one for one in run["passes"] if one["repetition"] == STEPS - 1]
    sums = {(one["name"], one["micro_step"]): one["storage_sums"] for one in last if "storage_sums" in one}
    if "drive" not in run["name"]:
        assert sums == {}
        return
    states = 12 * (-(-run["parameters"] // run["ranks"] // ALIGNMENT) * ALIGNMENT)
    gradients = 4 * big_gradients(run["ranks"])
    moved = {
        name: sum(one["optimizer"].get(name, {}).get("bytes", 0) for one in sums.values())
        for name in ("read", "write")
    }
    assert moved == {"read": states + gradients, "write": states + gradients}
    assert {micro_step for _, micro_step in sums} == {MICRO_STEPS - 1}, "only at the boundary"
