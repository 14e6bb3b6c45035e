"""Bytes of parameters, gradients, master weights and moments, by optimizer and ZeRO's stage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simoffload.models import Repeated, load_model
from simoffload.models.lora import with_lora
from simoffload.strategies.memory import scales_of
from simoffload.strategies.training.memory import StateBytes, moment_bytes, state_bytes
from simoffload.strategies.training.state import Partitions, Weight, weights_of


def matrix(rows: int, columns: int, **more: object) -> Weight:
    plain = Weight("matrix", rows * columns, rows + columns, trainable=True, place="layer")
    return plain._replace(**more)  # type: ignore[arg-type]


def states(stage: int, *, ranks: int = 64, gradient_bytes: int = 2) -> StateBytes:
    return state_bytes(
        Partitions(Repeated.once([matrix(75_000, 100_000)]), stage, ranks),
        kind="adam",
        dtype_bytes=2,
        gradient_bytes=gradient_bytes,
    )


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_figures_of_the_zero_paper(stage: int, gigabytes: float) -> None:
    """arXiv 1910.02054, figure 1: 7.5 billion parameters, 64 GPUs, Adam in mixed precision."""
    assert states(stage).total / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_gradients_are_accumulated_in_the_configured_type() -> None:
    assert states(2, gradient_bytes=4).gradients == 2 * states(2).gradients


def test_stage_3_pads_each_tensor_and_stage_2_all_together() -> None:
    weights = Repeated.once([matrix(1, 5), matrix(1, 6)])
    by_stage = {
        stage: state_bytes(Partitions(weights, stage, 4), kind="adam", dtype_bytes=2, gradient_bytes=2)
        for stage in (2, 3)
    }
    assert by_stage[3].master == 4 * (2 + 2)  # 5/4 and 6/4, each rounded up
    assert by_stage[2].master == 4 * 4  # 11 padded to 16 = 4 ranks x 4, a multiple of 2 each
    assert by_stage[2].parameters == 2 * 11
    assert by_stage[3].parameters == 2 * 4


def test_what_each_optimizer_remembers() -> None:
    """For a matrix of 4096 x 1024, by hand."""
    weights, numel = Repeated.once([matrix(4096, 1024)]), 4096 * 1024

    def of(kind: str, *, flat: bool) -> int:
        return moment_bytes(kind, weights, numel=numel, flat=flat)  # type: ignore[arg-type]

    assert of("adam", flat=True) == 8 * numel
    assert of("sgd", flat=True) == 4 * numel
    assert of("adam8bit", flat=True) == 2 * numel + 2 * 4 * (numel // 256)
    assert of("adafactor", flat=False) == 4 * (4096 + 1024)
    assert of("adafactor", flat=True) == 4 * numel


def test_small_tensors_keep_8_bit_adam_in_single_precision() -> None:
    assert moment_bytes("adam8bit", Repeated(), numel=4095, flat=True) == 8 * 4095
    assert moment_bytes("adam8bit", Repeated(), numel=4096, flat=True) == 2 * (4096 + 4 * 16)


def test_a_model_in_single_precision_has_no_master_weights_unless_they_are_a_partition() -> None:
    for stage, master in ((0, 0), (1, 4 * 250), (2, 4 * 250), (3, 0)):
        partitions = Partitions(Repeated.once([matrix(10, 100)]), stage, 4)
        found = state_bytes(partitions, kind="adam", dtype_bytes=4, gradient_bytes=4)
        assert found.master == master


@pytest.mark.parametrize("name", ["opt-1.3b", "bloom-560m", "llama-3.1-8b", "mixtral-8x7b"])
def test_the_weights_of_a_model_are_all_its_distinct_parameters(name: str) -> None:
    model = load_model(name)
    weights = weights_of(model)
    assert sum(weight.numel for weight in weights) == model.num_parameters
    assert all(0 < weight.sums <= weight.numel for weight in weights)


def test_rows_and_columns_of_experts_in_one_tensor_count_per_expert() -> None:
    model = load_model("mixtral-8x7b")  # 8 experts, 4096 wide, 14336 inside, fused
    experts = {weight.name: weight.sums for weight in weights_of(model) if "experts" in weight.name}
    assert experts["mlp.experts.gate_up_proj"] == 8 * (2 * 14336 + 4096)
    assert experts["mlp.experts.down_proj"] == 8 * (14336 + 4096)


def test_lora_leaves_gradients_and_states_of_the_adapters_only() -> None:
    model = with_lora(load_model("llama-2-7b"), r=8, target_modules=["q_proj", "v_proj"])
    partitions = Partitions(weights_of(model), 0, 1)
    found = state_bytes(partitions, kind="adam", dtype_bytes=2, gradient_bytes=2)
    assert (found.gradients, found.master, found.moments) == (2 * 4194304, 4 * 4194304, 8 * 4194304)
    assert found.parameters == 2 * (6_738_415_616 + 4_194_304)


def test_qlora_keeps_the_layers_matrices_in_four_bits() -> None:
    base = load_model({"name": "llama-2-7b", "quantization": "nf4-dq"})
    model = with_lora(base, r=8, target_modules=["q_proj", "v_proj"])
    partitions = Partitions(weights_of(model), 0, 1)
    found = state_bytes(partitions, kind="adam", dtype_bytes=2, gradient_bytes=2)
    matrices = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    others = 2 * 32000 * 4096 + 65 * 4096 + 4_194_304  # embedding, output layer, norms, adapters
    assert found.parameters == matrices // 2 + 2 * others
    assert scales_of(model) == pytest.approx(matrices * 0.127 / 8, rel=0.003)


@given(
    st.lists(st.integers(1, 10**7), min_size=1, max_size=20),
    st.integers(1, 64),
    st.sampled_from([0, 1, 2, 3]),
)
def test_all_ranks_together_hold_at_least_the_whole(numels: list[int], ranks: int, stage: int) -> None:
    partitions = Partitions(Repeated.once(matrix(1, numel) for numel in numels), stage, ranks)
    found = state_bytes(partitions, kind="adam", dtype_bytes=2, gradient_bytes=2)
    whole = sum(numels)
    assert found.master * ranks >= 4 * whole
    padding = 2 * ranks if stage < 3 else ranks * len(numels)
    assert found.master * (ranks if stage else 1) <= 4 * (whole + padding)
