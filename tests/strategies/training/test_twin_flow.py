"""Twin-Flow's ``ratio`` counts whole sub-groups, and the result says what it comes to."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.units import plural
from tests.strategies.training.mode_cases import CPU, NUMEL, plan_of

LARGE: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 2048}


def rendered(ratio: float, *, groups: int, **offload: Any) -> tuple[str, ...]:
    zero = {
        "stage": 3,
        "sub_group_size": -(-NUMEL // groups),
        "offload_optimizer": {**CPU, **offload, "ratio": ratio},
    }
    return plan_of(zero).warnings


@pytest.mark.parametrize(
    ("ratio", "groups", "cpu"), [(0.3, 1, 1), (0.05, 1, 1), (0.3, 4, 2), (0.25, 2, 1), (0.8, 4, 4)]
)
def test_a_share_that_is_not_the_asked_one_is_told(ratio: float, groups: int, cpu: int) -> None:
    """``int((1 - ratio) * n)`` sub-groups stay on the GPU: of one or of 4 at 0.8 none, of 4 at 0.3 two."""
    (warning,) = rendered(ratio, groups=groups)
    ratio_of = f"ds_config offload_optimizer.ratio {ratio:g} of {plural(groups, 'sub-group')}"
    text = f"{ratio_of} puts {cpu} on the CPU, "
    assert warning.startswith(text)
    share = float(warning.removeprefix(text).partition("%")[0])
    assert (share == 100) == (cpu == groups)
    assert warning.endswith("of the parameters; a smaller sub_group_size comes closer")


def test_the_share_is_of_parameters_not_of_sub_groups() -> None:
    """The embedding, 33.55 million elements, stays on the GPU; the CPU has the output layer, as large, and
    10.49 million of a layer: 44.04 of 77.59 million, in one of two sub-groups."""
    model = {**LARGE, "num_hidden_layers": 1, "vocab_size": 32_768}
    zero = {"stage": 3, "sub_group_size": 32_768 * 1024, "offload_optimizer": {**CPU, "ratio": 0.5}}
    (warning,) = plan_of(zero, model=model).warnings
    assert "ratio 0.5 of 2 sub-groups puts 1 on the CPU, 57% of the parameters" in warning


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_all_or_nothing_is_what_was_asked_for(ratio: float) -> None:
    assert rendered(ratio, groups=4) == ()


def test_fine_sub_groups_come_near_and_are_not_told_of() -> None:
    """A sub-group for each tensor of 400 equal layers."""
    model = {"num_hidden_layers": 400, "vocab_size": 64}
    zero = {"stage": 3, "sub_group_size": 1, "offload_optimizer": {**CPU, "ratio": 0.5}}
    assert plan_of(zero, model=model).warnings == ()


def test_without_offload_the_ratio_does_nothing() -> None:
    (warning,) = rendered(0.5, groups=4, device="none")
    assert warning == "ds_config offload_optimizer.ratio 0.5: without an offloaded optimizer it does nothing"


def test_states_on_storage_are_not_brought_to_the_gpu() -> None:
    zero = {
        "stage": 3,
        "sub_group_size": 4_000_000,
        "offload_optimizer": {"device": "nvme", "buffer_count": 4, "ratio": 0.5},
    }
    plan = plan_of(zero, model=LARGE)
    (warning,) = plan.warnings
    first, groups = int(0.5 * len(plan.state.updates)), len(plan.state.updates)
    assert first > 0
    assert f"those of {first} of {plural(groups, 'sub-group')} by PyTorch's slower Adam" in warning
