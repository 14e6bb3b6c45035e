"""What every tier holds at each stage of a run: knob by knob, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.models import ModelShape, Repeated, load_model
from simoffload.models.lora import with_lora
from simoffload.results.capacity import MemoryStage, tier_uses
from simoffload.strategies.base import INITIALISATION
from simoffload.strategies.training.memory import MICRO_STEP, OPTIMIZER_STEP
from simoffload.strategies.training.micro_step import ReplayPeaks
from tests.strategies.training.memory_cases import account, fits, sizes, workload

_CPU = {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": False}}
_N = 1_418_715_136  # OPT-1.3B with an output layer of its own


def opt() -> ModelShape:
    return load_model({"name": "opt-1.3b", "dtype": "bfloat16", "tie_word_embeddings": False})


def run(zero: dict[str, Any], **more: Any) -> tuple[MemoryStage, ...]:
    return account(more.pop("model", None) or opt(), zero, **more)[1]


def rounded(size: int) -> int:
    return 1 << (size - 1).bit_length()


def test_three_moments_in_order() -> None:
    memory_stages = run({"stage": 0})
    assert [moment.name for moment in memory_stages] == [INITIALISATION, MICRO_STEP, OPTIMIZER_STEP]


def test_without_partitions_everything_is_on_every_gpu() -> None:
    held = sizes(run({"stage": 0}, ranks=8), "hbm", 2)
    assert held["parameters"] == held["gradients"] == 2 * _N
    assert held["master weights"] == 4 * _N
    assert held["optimizer moments"] == 8 * _N
    assert held["gradients in single precision"] == (2 + 4) * _N


def test_stage_2_cuts_gradients_and_states() -> None:
    held = sizes(run({"stage": 2}, ranks=8), "hbm")
    assert held["parameters"] == 2 * _N
    assert held["gradients"] == 2 * _N // 8
    assert held["master weights"] + held["optimizer moments"] == 12 * _N // 8
    assert held["reduce buckets"] == 500_000_000 * 2


def test_overlap_comm_needs_a_second_bucket_below_stage_3_only() -> None:
    assert sizes(run({"stage": 2, "overlap_comm": True}, ranks=8), "hbm")["reduce buckets"] == 2_000_000_000
    assert sizes(run({"stage": 3, "overlap_comm": True}, ranks=8), "hbm")["reduce bucket"] == 1_000_000_000


def test_stage_3_keeps_partitions_and_gathers_what_it_works_on() -> None:
    held = sizes(run({"stage": 3}, ranks=8, peak=ReplayPeaks(10**9, 10**8, Repeated(), 10**9)), "hbm")
    assert held["parameter partition"] == pytest.approx(2 * _N / 8, rel=1e-5)
    assert held["all-gather buffer"] == 2 * 10**8
    assert max(held.get("gathered parameters, peak", 0), held.get("gathered parameters", 0)) == 2 * 10**9


def test_one_rank_whose_parameters_stay_gathers_nothing() -> None:
    names = " ".join(sizes(run({"stage": 3}), "hbm"))
    assert "gather" not in names


def test_offload_to_the_cpu_takes_twenty_bytes_a_parameter() -> None:
    """Parameters 2, master 4, moments 8, gradients 4 + 2; parameters are pinned whatever pin_memory says."""
    zero = {**_CPU, "offload_param": {"device": "cpu", "pin_memory": False}}
    held = sizes(run(zero, weights="dram", optimizer="dram"), "dram")
    assert held["parameters"] == held["accumulated gradients"] == 2 * _N
    assert held["master weights"] == held["gradients in single precision"] == 4 * _N
    assert held["optimizer moments"] == 8 * _N
    assert held["rounding of pinned allocations"] == rounded(2 * _N) - 2 * _N
    assert set(held) == {
        "operating system and processes",
        "parameters",
        "accumulated gradients",
        "master weights",
        "gradients in single precision",
        "optimizer moments",
        "rounding of pinned allocations",
    }


def test_every_rank_of_a_host_counts_and_those_of_others_do_not() -> None:
    def master(ranks: int, platform: str) -> int:
        return sizes(run(_CPU, ranks=ranks, platform=platform, optimizer="dram"), "dram")["master weights"]

    assert master(8, "dgx-a100") == pytest.approx(4 * _N, rel=1e-4)
    assert master(4, "dgx-a100") == pytest.approx(4 * _N, rel=1e-4)


def test_pinned_gradients_are_rounded_by_sub_group_and_all_together() -> None:
    """Two sub-groups: the first ends when it holds 1e9 elements."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    memory_stages = run(zero, optimizer="dram")
    layer = 12 * 2048**2 + 13 * 2048
    embedded = (50272 + 2050) * 2048
    # The first layer with which the sum reaches 1e9 ends amid its tensors; count them as DeepSpeed does.
    tensors = [50272 * 2048, 2050 * 2048]
    one_layer = [2048, 2048, *[2048**2, 2048] * 4, 2048, 2048, 4 * 2048**2, 4 * 2048, 4 * 2048**2, 2048]
    assert sum(one_layer) == layer
    tensors += one_layer * 24
    total, index = 0, 0
    while total < 10**9:
        total += tensors[index]
        index += 1
    assert total > embedded
    single = [4 * total, 4 * (_N - total)]
    expected = sum(rounded(size) - size for size in [*single, 2 * _N])
    assert sizes(memory_stages, "dram")["rounding of pinned allocations"] == expected


def test_moments_come_with_the_first_step() -> None:
    memory_stages = run(_CPU, optimizer="dram")
    assert "optimizer moments" not in sizes(memory_stages, "dram", 0)
    assert "optimizer moments" in sizes(memory_stages, "dram", 1)


def test_pinning_needs_the_unpinned_buffer_for_a_moment() -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    start = sizes(run(zero, optimizer="dram", platform="dgx-2"), "dram", 0)
    # Parameters are moved through host memory (2 N), and a sub-group is cast to single precision (4 x 1e9).
    assert start["sub-group cast to single precision"] > 4 * 10**9 > 2 * _N
    small = {**zero, "sub_group_size": 10**7, "offload_param": {"device": "cpu"}}
    start = sizes(run(small, weights="dram", optimizer="dram"), "dram", 0)
    assert start["gradient buffer before it is page-locked"] == 2 * _N
    unpinned = sizes(run(_CPU, optimizer="dram"), "dram", 0)
    assert "gradient buffer before it is page-locked" not in unpinned


def test_stage_2_offload_keeps_its_own_buffers() -> None:
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}}
    held = sizes(run(zero, ranks=2, optimizer="dram"), "dram")
    part = -(-_N // 4) * 2
    assert held["master weights"] == held["gradients in single precision"] == 2 * 4 * part
    assert held["updated parameters in 16 bit"] == 2 * 2 * part
    assert held["gradient buffer"] == 2 * 2 * 50272 * 2048
    assert "accumulated gradients" not in held
    twice = sizes(run(zero, ranks=2, optimizer="dram", work=workload(accumulation=4)), "dram")
    assert twice["accumulated gradients"] == pytest.approx(2 * 2 * _N / 2, rel=1e-6)


def test_older_releases_pin_and_copy_otherwise() -> None:
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}}

    def held(version: str, tier: str, moment: int = 1) -> dict[str, int]:
        return sizes(run(zero, optimizer="dram", version=version), tier, moment)

    assert "rounding of pinned allocations" in held("0.9.1", "dram")  # pinned in any case
    assert "updated parameters in 16 bit" not in held("0.16.9", "dram")
    assert held("0.17.0", "dram")["updated parameters in 16 bit"] == 2 * _N
    assert "own part of the parameters, copied" not in held("0.18.2", "hbm", 0)
    assert held("0.18.3", "hbm", 0)["own part of the parameters, copied"] == 2 * _N
    # 0.17 pins what it is told not to: master weights.
    assert held("0.17.0", "dram")["rounding of pinned allocations"] == rounded(4 * _N) - 4 * _N
    assert "rounding of pinned allocations" not in held("0.18.3", "dram")


def test_below_stage_3_every_process_begins_with_the_whole_model() -> None:
    """In host memory, and flattened there before 0.19.0 or where the GPU has no room for a second copy."""

    def whole(version: str, model: ModelShape | None = None, stage: int = 2) -> int:
        memory_stages = run({"stage": stage}, ranks=8, version=version, model=model)
        return sizes(memory_stages, "dram", 0)["whole model in every process"]

    assert whole("0.19.0") == 8 * 2 * _N
    assert whole("0.18.9") == 8 * 2 * 2 * _N
    assert whole("0.18.9", stage=0) == 8 * 2 * _N
    large = load_model({"name": "opt-13b", "dtype": "bfloat16"})  # 26 GB, twice, on 40 GB
    assert whole("0.19.0", large) == 8 * 2 * large.weight_bytes


def test_storage_holds_sixteen_bytes_a_parameter_and_two_more() -> None:
    zero = {
        "stage": 3,
        "offload_optimizer": {"device": "nvme"},
        "offload_param": {"device": "nvme", "buffer_size": 2e8},
    }
    memory_stages = run(zero, weights="raid", optimizer="raid", ranks=4)
    held = sizes(memory_stages, "raid")
    assert held["parameters"] == pytest.approx(2 * _N, rel=0.001)
    assert held["master weights and moments"] == pytest.approx(12 * _N, rel=0.001)
    assert held["gradients"] == pytest.approx(4 * _N, rel=0.001)
    assert sizes(memory_stages, "raid", 0).keys() == {"parameters", "master weights"}


def test_swap_buffers_are_of_the_largest_sub_group() -> None:
    zero = {
        "stage": 3,
        "sub_group_size": 10**8,
        "offload_optimizer": {"device": "nvme", "pin_memory": False, "buffer_count": 6},
    }
    held = sizes(run(zero, optimizer="raid"), "dram")
    # The embedding alone is larger than a sub-group should be; any other group ends with a tensor of at most
    # 16.8e6 beyond 1e8.
    assert held["swap buffers of the optimizer"] == 6 * 4 * max(50272 * 2048, largest_group(10**8))
    assert held["accumulated gradients"] == 2 * _N


def largest_group(size: int) -> int:
    one_layer = [2048, 2048, *[2048**2, 2048] * 4, 2048, 2048, 4 * 2048**2, 4 * 2048, 4 * 2048**2, 2048]
    tensors = [50272 * 2048, 2050 * 2048, *one_layer * 24, 2048, 2048, 50272 * 2048]
    largest = held = 0
    for numel in tensors:
        held += numel
        largest = max(largest, held)
        if held >= size:
            held = 0
    return largest


def test_swap_buffers_were_rounded_until_deepspeed_locked_them_itself() -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "nvme", "pin_memory": False}}
    old = sizes(run(zero, optimizer="raid", version="0.18.3"), "dram")
    new = sizes(run(zero, optimizer="raid", version="0.19.4"), "dram")
    pool = new["swap buffers of the optimizer"]
    assert "rounding of pinned allocations" not in new
    assert old["rounding of pinned allocations"] == rounded(pool) - pool


def test_max_in_cpu_is_held_twice_over_storage() -> None:
    zero = {
        "stage": 3,
        "offload_optimizer": {"device": "nvme"},
        "offload_param": {"device": "nvme", "buffer_size": 2e8, "max_in_cpu": 3e8},
    }
    memory_stages = run(zero, weights="raid", optimizer="raid")
    assert sizes(memory_stages, "dram")["parameters kept in memory"] == 600_000_000
    assert sizes(memory_stages, "raid")["parameters"] == pytest.approx(2 * _N, rel=0.001)


def test_twin_flow_keeps_the_first_sub_groups_on_the_gpu() -> None:
    zero = {
        "stage": 3,
        "sub_group_size": 10**8,
        "offload_optimizer": {"device": "cpu", "pin_memory": False, "ratio": 0.5},
    }
    memory_stages = run(zero, optimizer="dram")
    on_gpu = sizes(memory_stages, "hbm")["optimizer states and gradients (ratio)"] // 16
    on_host = sizes(memory_stages, "dram")["optimizer moments"] // 8
    assert on_gpu + on_host == _N
    assert on_gpu == pytest.approx(_N / 2, rel=0.1)


def test_zenflow_beside_the_next_steps_takes_thirty_two_bytes() -> None:
    """Master 4, two sets of gradients 8, two of moments 16, a stale copy 4."""
    zero = {
        "stage": 2,
        "offload_optimizer": {"device": "cpu", "pin_memory": False},
        "zenflow": {"topk_ratio": 0.1, "overlap_step": True, "update_interval": 4},
    }
    held = sizes(run(zero, optimizer="dram"), "dram")
    single = sum(value for name, value in held.items() if "ZenFlow" in name or name == "master weights")
    assert single == 32 * _N
    assert sizes(run(zero, optimizer="dram"), "hbm")["selected columns (ZenFlow)"] == pytest.approx(
        4 * 0.1 * _N * 2, rel=1e-6
    )


def test_super_offload_moves_gradients_to_shared_memory() -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True, "super_offload": True}}
    held = sizes(run(zero, optimizer="dram"), "dram")
    assert held["gradients in single precision"] == 4 * _N
    assert held["page-locked memory that PyTorch keeps after start-up"] >= 4 * _N


def test_checkpoints_in_host_memory_leave_the_gpu() -> None:
    work = workload(4, 2048)
    zero = {"stage": 3}
    section = {"activation_checkpointing": {"cpu_checkpointing": True}}
    with_it = run(zero, work=work, sections=section)
    without = run(zero, work=work)
    assert sizes(with_it, "dram")["checkpoints"] == 24 * 4 * 2048 * 2048 * 2
    assert sum(sizes(with_it, "hbm").values()) < sum(sizes(without, "hbm").values())


def test_gradients_in_single_precision_on_request() -> None:
    held = sizes(run({"stage": 2}, ranks=8, sections={"data_types": {"grad_accum_dtype": "fp32"}}), "hbm")
    assert held["gradients"] == 4 * _N // 8


def test_other_optimizers_keep_less() -> None:
    def of(kind: str) -> int:
        return sizes(run({"stage": 1}, ranks=4, sections={"optimizer": {"type": kind}}), "hbm")[
            "optimizer moments"
        ]

    assert of("AdamW") == 8 * _N // 4
    assert of("SGD") == of("Adafactor") == 4 * _N // 4
    assert of("AdamW8bit") == pytest.approx(2.03 * _N / 4, rel=0.001)


def test_lora_trains_where_the_whole_model_would_not_fit() -> None:
    model = load_model({"name": "llama-2-7b", "dtype": "bfloat16"})
    adapted = with_lora(model, r=8, target_modules=["q_proj", "v_proj"])
    whole = account(model, {"stage": 0}, platform="rtx-4090-desktop")
    lora = account(adapted, {"stage": 0}, platform="rtx-4090-desktop")
    assert not fits(*whole)
    assert fits(*lora)


def test_qlora_puts_65_billion_parameters_on_one_gpu_of_48_gb() -> None:
    """Dettmers et al., arXiv 2305.14314, abstract; batch 1, 512 tokens, rank 64 on all linear layers."""
    sizes_65b = {"num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 22016}
    sizes_65b |= {"num_attention_heads": 64, "vocab_size": 32000}
    spec: dict[str, Any] = {"family": "llama", "dtype": "bfloat16", **sizes_65b}
    model = load_model(spec)
    assert model.num_parameters / 1e9 == pytest.approx(65.3, abs=0.1)
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    packed = with_lora(load_model({**spec, "quantization": "nf4-dq"}), r=64, target_modules=every)
    adapted = with_lora(model, r=64, target_modules=every)
    arguments: dict[str, Any] = {
        "platform": "l40s-workstation",
        "sections": {"optimizer": {"type": "AdamW8bit"}},
    }
    machine, memory_stages = account(packed, {"stage": 0}, **arguments)
    needed = {use.tier: use for use in tier_uses(memory_stages[1].terms, machine.tiers)}
    assert needed["hbm"].fits
    machine, memory_stages = account(adapted, {"stage": 0}, **arguments)
    assert not fits(machine, memory_stages)
