"""The values of a range: numbers, or quantities such as ``10 GB/s``."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal

from simoffload.planning.sweep.section import Bound, RangeSection

__all__ = ["Complaint", "expand"]

Complaint = Callable[[str, str], Exception]
"""Makes the exception for what is wrong with a key."""
Value = int | float | str

_DIGITS = Context(prec=12)
"""Of values between two ends: enough for any knob, and no trace of binary fractions."""
_EXACT = Context(prec=40)


def expand(spec: RangeSection, complain: Complaint, *, most: int) -> tuple[Value, ...]:
    """All values of a range, both ends included where the step meets them.

    Between ends that are written as whole numbers, n gives whole numbers, each once; between 1.0 and 8.0 it
    does not. Raises what ``complain`` makes.
    """
    low, high = spec.min, spec.max
    if low.unit != high.unit:
        raise complain("max", f"must have the unit of min, {low.unit or 'which is a plain number'}")
    if low.value > high.value:
        raise complain("min", f"{low} is above max, {high}; exchange them")
    if spec.scale == "log" and low.value <= 0:
        raise complain("min", f"must be above 0 on a logarithmic scale, got {low}")
    if spec.step is not None:
        numbers = _stepped(spec, spec.step, complain, most)
    else:
        count = spec.n or 1
        if count > most:
            raise complain("n", f"{count:,} values are more than the {most:,} that a sweep may have")
        numbers = _spaced(low.value, high.value, count, log=spec.scale == "log")
        if isinstance(low.written, int) and isinstance(high.written, int):
            numbers = _rounded(numbers, complain)
    floats = any(isinstance(one.written, float) for one in (low, high, spec.step) if one)
    return tuple(_plain(number, low.unit, floats=floats) for number in numbers)


def _rounded(numbers: list[Decimal], complain: Complaint) -> list[Decimal]:
    """Whole numbers, each once."""
    between = numbers[-1] - numbers[0] + 1
    if between < len(numbers):
        low, high = numbers[0], numbers[-1]
        text = f"there are only {between} whole numbers from {low} to {high}; write {low}.0 for fractions"
        raise complain("n", text)
    return list(dict.fromkeys(number.to_integral_value(ROUND_HALF_UP) for number in numbers))


def _spaced(low: Decimal, high: Decimal, count: int, *, log: bool) -> list[Decimal]:
    if count == 1 or low == high:
        return [low]
    if not log:
        gaps = [_DIGITS.create_decimal(low + (high - low) * i / (count - 1)) for i in range(1, count - 1)]
        return [low, *gaps, high]
    ratio = math.log(float(high / low)) / (count - 1)
    inner = (Decimal(float(low) * math.exp(ratio * i)) for i in range(1, count - 1))
    return [low, *(_DIGITS.create_decimal(number) for number in inner), high]


def _stepped(spec: RangeSection, step: Bound, complain: Complaint, most: int) -> list[Decimal]:
    low = spec.min
    if spec.scale == "log":
        raise complain("step", "a logarithmic scale has no step; give n (how many values)")
    if step.unit != low.unit:
        unit = f" in {low.unit}, as min" if low.unit else ""
        raise complain("step", f'must be a number{unit}, got "{step}"')
    if step.value <= 0:
        raise complain("step", f"must be above 0, got {step}")
    count = _EXACT.divide(spec.max.value - low.value, step.value).to_integral_value(ROUND_FLOOR) + 1
    if count > most:
        raise complain("step", f"gives more than the {most:,} values that a sweep may have")
    return [low.value + i * step.value for i in range(int(count))]


def _plain(number: Decimal, unit: str, *, floats: bool) -> Value:
    if unit:
        return f"{_text(number)} {unit}"
    if number == number.to_integral_value() and not floats:
        return int(number)
    return float(number)


def _text(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
