"""DeepSpeed's estimators and the white paper's rule: as printed in DeepSpeed's documentation, and by hand."""

from __future__ import annotations

import pytest

from simoffload.models import load_model
from simoffload.models.lora import with_lora
from simoffload.results import Estimate
from simoffload.strategies.training.memory import (
    estimates_for,
    largest_module_numel,
    white_paper_rule,
    zero2_estimate,
    zero3_estimate,
)
from tests.strategies.training.memory_cases import gpt

_P, _L = 2_851_000_000, 32_000_000


def printed(found: Estimate) -> tuple[float, float]:
    """Host and GPU as the estimators print them: GiB with two places."""
    assert found.per_host is not None
    assert found.per_gpu is not None
    return round(found.per_host / 2**30, 2), round(found.per_gpu / 2**30, 2)


@pytest.mark.parametrize(
    ("host", "gpu", "params", "optimizer"),
    [(71.69, 0.12, True, True), (63.72, 0.78, False, True), (1.43, 6.09, False, False)],
)
def test_zero3_is_what_deepspeeds_documentation_prints(
    host: float, gpu: float, params: bool, optimizer: bool
) -> None:
    """docs/code-docs/source/memory.rst: 2851e6 parameters, 32e6 in the largest layer, one node of 8 GPUs,
    under ``zero.Init``."""
    found = zero3_estimate(_P, _L, num_gpus_per_node=8, cpu_offload=optimizer, cpu_offload_params=params)
    assert printed(found) == (host, gpu)


def test_zero2_is_what_deepspeeds_documentation_prints() -> None:
    """The same page. Its 15.93 GiB without offload are of 4P + 16P/G; DeepSpeed 0.18.3 has 2P + 18P/G."""
    assert printed(zero2_estimate(_P, num_gpus_per_node=8)) == (127.45, 5.31)
    without = zero2_estimate(_P, num_gpus_per_node=8, cpu_offload=False)
    assert printed(without) == (127.45, 11.28)
    assert without.per_gpu == 2 * _P + 18 * _P // 8


def test_several_nodes_share_what_zero_init_partitions() -> None:
    found = zero3_estimate(_P, _L, num_gpus_per_node=8, num_nodes=4)
    assert found.per_host == int(_P * 18 / 4 * 1.5)


def test_the_white_papers_rule_for_its_own_models() -> None:
    """240 x layers x hidden^2 in TB: BLOOM-176B, and the 1.2 T and 24 T models of the white paper's table."""
    for name, terabytes in (("bloom-176b", 3.453), ("bloom-mod-1", 24.16), ("bloom-mod-2", 483.2)):
        total = white_paper_rule(load_model(name)).total
        assert total is not None
        assert total / 1e12 == pytest.approx(terabytes, rel=1e-3)


def test_the_rule_is_twenty_bytes_a_parameter_where_layers_are_twelve_hidden_squared() -> None:
    model = load_model("bloom-mod-1")
    total = white_paper_rule(model).total
    assert total is not None
    assert total / model.num_parameters == pytest.approx(20, rel=0.01)


def test_the_largest_module_is_often_the_vocabulary() -> None:
    assert largest_module_numel(load_model("bloom-560m")) == 250880 * 1024
    assert largest_module_numel(gpt(2, 20480, 128)) == 4 * 20480**2 + 4 * 20480  # fc1, with its bias


def test_a_run_is_told_what_applies_to_its_stage() -> None:
    model = load_model("llama-2-7b")
    sizes = {"ranks": 8, "nodes": 2, "offload_optimizer": True, "offload_params": False}
    by_stage = {stage: estimates_for(model, stage=stage, **sizes) for stage in range(4)}  # type: ignore[arg-type]
    assert [len(by_stage[stage]) for stage in range(4)] == [1, 2, 2, 2]
    assert by_stage[1] == by_stage[2]
    assert by_stage[2][0] == zero2_estimate(model.num_parameters, num_gpus_per_node=4, num_nodes=2)
    assert by_stage[3][0] == zero3_estimate(
        model.num_parameters, 32000 * 4096, num_gpus_per_node=4, num_nodes=2, cpu_offload_params=False
    )
    assert {found[-1].name for found in by_stage.values()} == {"white paper's rule"}


def test_beside_adapters_they_are_told_as_those_of_full_training() -> None:
    adapted = with_lora(load_model("llama-3.2-1b"), r=16, target_modules=["q_proj"])
    sizes = {"ranks": 1, "nodes": 1, "offload_optimizer": True, "offload_params": False}
    rendered = [one.name for one in estimates_for(adapted, stage=2, **sizes)]  # type: ignore[arg-type]
    assert rendered == [
        "DeepSpeed's estimate for ZeRO-2, if all weights were trained",
        "white paper's rule, if all weights were trained",
    ]
