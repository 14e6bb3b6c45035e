"""One account of training state: partitions, sub-groups, places, and who reads them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import simoffload
from simoffload.models import SINGLE, Repeated
from simoffload.strategies.training.state import Partitions, Weight, sub_groups
from tests.strategies.training.mode_cases import BIG, CPU, NUMEL, plan_of

NVME = {"device": "nvme", "nvme_path": "/raid"}


def weights(*numels: int) -> Repeated[Weight]:
    return Repeated.once(Weight(str(i), numel, numel, True, "layer") for i, numel in enumerate(numels))


def calls(name: str) -> Iterator[str]:
    """Places of the package where a function of that name is called."""
    root = Path(simoffload.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func
                found = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                if found == name:
                    yield f"{path.relative_to(root).as_posix()}:{node.lineno}"


def test_sub_groups_are_computed_in_one_place() -> None:
    (place,) = calls("sub_groups")
    assert place.startswith("strategies/training/state.py:")


def test_memory_and_checkpoints_read_the_state() -> None:
    """Nobody else makes an account of its own."""
    made = {place.rpartition(":")[0] for place in calls("Partitions")}
    assert made == {"strategies/training/state.py", "extensions/storage/program.py"}


# -- sub-groups ----------------------------------------------------------------------------------------


def test_a_sub_group_ends_once_it_holds_enough() -> None:
    """The tensor that reaches the size still belongs to it (``_create_fp16_sub_groups``)."""
    assert Partitions(weights(3, 3, 3, 10, 1, 1), 3, 1, 5).group_numels == (6, 13, 2)


def test_one_ranks_partition_counts() -> None:
    assert Partitions(weights(8, 8, 8, 8), 3, 4, 4).group_numels == (4, 4)


def test_below_stage_3_one_rank_updates_an_equal_part_of_all_parameters_in_a_row() -> None:
    """Padded together to a multiple of two elements for each rank, not tensor by tensor."""
    assert Partitions(weights(1, 1, 1, 1), 2, 3).group_numels == (2,)
    assert Partitions(weights(5, 6), 1, 4).group_numels == (4,)
    assert Partitions(weights(5, 6), 0, 4).group_numels == (11,)


numels = st.lists(st.integers(1, 50), max_size=6)
pieces = st.lists(st.tuples(numels, st.integers(0, 40)), max_size=4)


@given(tensors=pieces, size=st.integers(1, 200))
def test_equal_layers_have_the_groups_that_a_walk_through_all_tensors_finds(
    tensors: list[tuple[list[int], int]], size: int
) -> None:
    """Every tensor is in one group, and all groups but the last are full."""
    groups, found = [list[int]()], Repeated(*tensors)
    for numel in found:
        groups[-1].append(numel)
        if sum(groups[-1]) >= size:
            groups.append([])
    assert [list(group) for group in sub_groups(found, int, size)] == [group for group in groups if group]


def test_groups_of_equal_layers_are_found_in_a_few_of_them() -> None:
    """Five layers of 4 and 6 elements fill two groups of 21 or more: one of 24, one of 26 elements."""
    layers = Repeated(([1], 1), ([4, 6], 10**9))
    groups = sub_groups(layers, int, 21)
    assert sum(len(some) for some, _ in groups.pieces) < 20
    assert groups.total(lambda group: group.total(int)) == layers.total(int)


# -- places --------------------------------------------------------------------------------------------


def offloaded(**more: Any) -> dict[str, Any]:
    return {
        "stage": 3,
        "offload_optimizer": NVME | {"buffer_count": 12},
        "offload_param": NVME | {"buffer_count": 60} | more,
    }


def test_whole_sub_groups_stay_in_host_memory_while_max_in_cpu_has_room() -> None:
    """The first that has no room leaves none for others (``_set_fp16_partitioned_groups_flat``)."""
    zero = offloaded(max_in_cpu=0) | {"sub_group_size": 4 * 10**6}
    first = plan_of(zero, model=BIG).state.partitions.group_numels[0]
    params = [
        [update.params for update in plan_of(zero | offloaded(max_in_cpu=room), model=BIG).state.updates]
        for room in (first - 1, first)
    ]
    assert [found.count("cpu") for found in params] == [0, 1]
    assert params[1][0] == "cpu"


def test_frozen_weights_are_in_no_sub_group_and_never_kept_in_host_memory() -> None:
    """Sub-groups are of what the optimizer has; ``max_in_cpu`` is no more than room for them."""
    lora = {"lora": {"r": 8, "target_modules": ["q_proj", "v_proj"]}}
    state = plan_of(offloaded(max_in_cpu=10**9), model=BIG, places=lora).state
    smallest = state.settings.params.min_swap_bytes
    large = [tensor for tensor in state.tensors if tensor.slice_numel * 2 >= smallest]
    assert large
    assert all(tensor.on_nvme for tensor in large)
    assert sum(state.partitions.group_numels) == state.partitions.trained_numel < NUMEL


def test_states_of_small_sub_groups_stay_in_host_memory() -> None:
    state = plan_of(offloaded() | {"sub_group_size": 10**5}, model=BIG).state
    smallest = state.settings.params.min_swap_bytes
    for update in state.updates:
        assert update.swapped == (SINGLE * update.numel >= smallest)
    assert {*state.on_storage, *state.in_memory} == set(state.updates)


def test_twin_flow_updates_the_first_sub_groups_on_the_gpu() -> None:
    zero = {"stage": 3, "offload_optimizer": CPU | {"ratio": 0.5}, "sub_group_size": 10**5}
    state = plan_of(zero).state
    first = len(state.updates) // 2
    assert state.on_gpu == state.updates[:first]
    assert state.in_memory == state.updates[first:]
