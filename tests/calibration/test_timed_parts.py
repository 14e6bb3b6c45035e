"""Methods are timed on the instance while a step is recorded, and only then."""

from __future__ import annotations

import pytest

from simoffload_calibrate.deepspeed.recorders import BACKWARD, OPTIMIZER, timed_parts


class DeepSpeedZeroOptimizer_Stage3:  # noqa: N801 (DeepSpeed's name, which Python puts before private methods)
    """The part of DeepSpeed's class that the mangled names need."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def step(self) -> str:
        for group in range(3):
            self._optimizer_step(group)
        return "stepped"

    def _optimizer_step(self, sub_group_id: int) -> None:
        self.done.append(f"adam {sub_group_id}")

    def backward(self) -> None:
        self.__reduce_and_partition_ipg_grads(communication_data_type="bf16")

    def __reduce_and_partition_ipg_grads(self, communication_data_type: str) -> None:
        self.done.append(f"reduced {communication_data_type}")

    def unscale_and_clip_grads(self) -> None:
        raise ArithmeticError


def test_calls_are_counted_and_do_what_they_did() -> None:
    optimizer = DeepSpeedZeroOptimizer_Stage3()
    with timed_parts(optimizer, OPTIMIZER) as parts:
        assert optimizer.step() == "stepped"
    assert optimizer.done == ["adam 0", "adam 1", "adam 2"]
    assert {name: row["count"] for name, row in parts.items()} == {"optimizer_step": 3, "step": 1}
    assert 0 < parts["optimizer_step"]["seconds"] <= parts["step"]["seconds"]


def test_private_methods_are_found_under_the_name_that_python_gives_them() -> None:
    optimizer = DeepSpeedZeroOptimizer_Stage3()
    with timed_parts(optimizer, BACKWARD) as parts:
        optimizer.backward()
    assert optimizer.done == ["reduced bf16"]
    assert parts["reduce_and_partition_ipg_grads"]["count"] == 1


def test_nothing_stays_wrapped_not_even_after_an_error() -> None:
    optimizer = DeepSpeedZeroOptimizer_Stage3()
    with pytest.raises(ArithmeticError), timed_parts(optimizer, OPTIMIZER) as parts:
        optimizer.unscale_and_clip_grads()
    assert parts["unscale_and_clip_grads"]["count"] == 1
    optimizer.step()
    assert parts.keys() == {"unscale_and_clip_grads"}
    assert set(vars(optimizer)) == {"done"}


def test_methods_that_are_missing_are_left_out() -> None:
    with timed_parts(object(), OPTIMIZER) as parts:
        pass
    assert parts == {}
