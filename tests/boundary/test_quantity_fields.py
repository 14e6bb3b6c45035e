"""Quantities as fields of models: text in, numbers inside, text out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from simoffload.units import (
    Bytes,
    BytesPerSecond,
    Flops,
    FlopsPerSecond,
    PositiveBytes,
    Seconds,
    Watts,
)

ADVICE = 'write e.g. "40 GB" or "40 GiB"'


class Device(BaseModel):
    """A model with a field of every quantity, as profiles have them."""

    capacity: PositiveBytes = 1
    block: Bytes = 0
    read: BytesPerSecond | None = None
    latency: Seconds = 0.0
    work: Flops = 0.0
    peak: FlopsPerSecond = 1.0
    power: Watts = 0.0


def test_fields_become_numbers() -> None:
    device = Device.model_validate(
        {
            "capacity": "15.36 TB",
            "read": "200 Gb/s",
            "latency": "90 us",
            "work": "1 TFLOP",
            "peak": "1 PFLOPS",
            "power": "25 W",
        }
    )
    assert device == Device.model_construct(
        capacity=15_360_000_000_000, read=25 * 10**9, latency=90e-6, work=1e12, peak=1e15, power=25.0
    )
    assert type(device.capacity) is int
    assert type(device.latency) is float


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (200, '"200" has no unit; write e.g. "200 GB" or "200 GiB"'),
        (1e9, '"1000000000.0" has no unit; write e.g. "1000000000.0 GB" or "1000000000.0 GiB"'),
        (math.nan, 'must be a finite size, got "nan"'),
        (math.inf, 'must be a finite size, got "inf"'),
        (True, f"must be text with a unit; {ADVICE}"),
        (None, f"must be text with a unit; {ADVICE}"),
        (["40 GB"], f"must be text with a unit; {ADVICE}"),
        ({}, f"must be text with a unit; {ADVICE}"),
        ("0 GB", 'must be above 0, got "0 GB"'),
    ],
)
def test_fields_take_nothing_but_text(value: object, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Device.model_validate({"capacity": value})
    (error,) = caught.value.errors()
    assert error["msg"] == f"Value error, {message}"


def exact(maximum: float, *, minimum: float = 0) -> st.SearchStrategy[float]:
    """Any number of base units, often one that is round in some unit."""
    powers = st.sampled_from([1, 1000, 1024, 10**6, 2**20, 10**9, 2**30, 10**12, 2**40])
    round_ones = st.builds(lambda count, power: count * power, st.integers(1, 4096), powers)
    return (st.integers(int(minimum), int(maximum)) | round_ones).filter(lambda n: minimum <= n <= maximum)


@pytest.mark.parametrize(
    ("quantity", "values"),
    [
        (Bytes, exact(1e21)),
        (PositiveBytes, exact(1e21, minimum=1)),
        (BytesPerSecond, exact(1e18, minimum=1)),
        (Seconds, st.floats(0, 1e10)),
        (Flops, st.floats(0, 1e30)),
        (FlopsPerSecond, st.floats(0, 1e24, exclude_min=True)),
        (Watts, st.floats(0, 1e9)),
    ],
    ids=["Bytes", "PositiveBytes", "BytesPerSecond", "Seconds", "Flops", "FlopsPerSecond", "Watts"],
)
def test_dumped_text_reads_back_as_the_same_number(quantity: Any, values: st.SearchStrategy[float]) -> None:
    adapter = TypeAdapter[Any](quantity)

    @given(values)
    def check(value: float) -> None:
        text = adapter.dump_python(value, mode="json")
        assert isinstance(text, str)
        assert adapter.validate_python(text) == value

    check()


def test_dumped_text_is_short_where_it_can_be() -> None:
    given = {"capacity": "40 GiB", "block": "131072 B", "read": "200 Gb/s", "latency": "0.09 ms"}
    device = Device.model_validate({**given, "peak": "0.312 PFLOPS"})
    assert device.model_dump(mode="json") == {
        "capacity": "40 GiB",
        "block": "128 KiB",
        "read": "25 GB/s",
        "latency": "90 us",
        "work": "0 FLOP",
        "peak": "312 TFLOPS",
        "power": "0 W",
    }
    odd = Device.model_validate({"capacity": "42949672961 B"})
    assert odd.model_dump(mode="json")["capacity"] == "42949672961 B"
    assert device.model_dump()["capacity"] == 40 * 2**30
