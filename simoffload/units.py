"""Quantities with units: text is converted to a number in SI units once, where the input is read.

Units are case-sensitive. kB, MB, GB are powers of 1000 and KiB, MiB, GiB powers of 1024; B is a byte and b or
bit a bit, which only rates may count. A number without a unit is refused, as it is ambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from simoffload.errors import printable

Scales = dict[str, Fraction]
"""Maps a unit to its size in base units, largest first."""


def _prefixed(unit: str, prefixes: str, *, base: int = 1000) -> dict[str, Fraction]:
    """Return the unit itself and with each of the prefixes (given smallest first)."""
    powers = {f"{prefix}{unit}": base**power for power, prefix in enumerate(prefixes.split(), start=1)}
    return {name: Fraction(scale) for name, scale in reversed([(unit, 1), *powers.items()])}


def _per_second(units: Scales, suffix: str = "/s", *, factor: Fraction = Fraction(1)) -> dict[str, Fraction]:
    return {f"{unit}{suffix}": scale * factor for unit, scale in units.items()}


_BYTES = _prefixed("B", "k M G T P E")
_IBYTES = _prefixed("B", "Ki Mi Gi Ti Pi Ei", base=1024)
_BITS = _prefixed("b", "k M G T")
_WORDY_BITS = _prefixed("bit", "k M G T")
_BIT = Fraction(1, 8)
_FLOP = _prefixed("FLOP", "k M G T P E")


class _Quantity(NamedTuple):
    """What a set of units measures, and which values are valid."""

    name: str
    units: Scales
    """The units, largest first; the recommended spelling comes before its synonyms."""
    base: str
    """The unit of the parsed number."""
    limit: int
    """The largest value accepted [base]; a larger one is a wrong unit."""
    examples: str
    integer: bool = False
    """Whether it is rounded to an integer number of base units."""
    positive: bool = False
    """Whether zero is refused, as it is meaningless."""

    def advice(self, number: str) -> str:
        """Return what to write instead of a number without a unit."""
        return f"write e.g. {self.examples.format(number)}"


_SIZE = _Quantity("size", _BYTES | _IBYTES, "B", limit=10**21, examples='"{0} GB" or "{0} GiB"', integer=True)
_CAPACITY = _SIZE._replace(positive=True)
_RATE = _Quantity(
    "rate",
    _per_second(_BYTES)
    | _per_second(_IBYTES)
    | _per_second(_BITS, factor=_BIT)
    | _per_second(_WORDY_BITS, factor=_BIT)
    | _per_second(_BYTES, "ps")
    | _per_second(_IBYTES, "ps")
    | _per_second(_BITS, "ps", factor=_BIT),
    "B/s",
    limit=10**18,
    examples='"{0} GB/s" (bytes) or "{0} Gb/s" (bits)',
    integer=True,
    positive=True,
)
_SECOND = Fraction(1)
_MICRO = Fraction(1, 10**6)
_TIMES = {"d": _SECOND * 86400, "h": _SECOND * 3600, "min": _SECOND * 60, "s": _SECOND}
_TIMES |= {"ms": _MICRO * 1000, "us": _MICRO, "ns": _MICRO / 1000}
_TIME = _Quantity(
    "time",
    # Unicode has the micro sign twice: as itself and as the Greek letter.
    _TIMES | {"\N{MICRO SIGN}s": _MICRO, "\N{GREEK SMALL LETTER MU}s": _MICRO},
    "s",
    limit=10**10,
    examples='"{0} us", "{0} ms" or "{0} s"',
)
_WORK = _Quantity("FLOP count", _FLOP, "FLOP", limit=10**30, examples='"{0} GFLOP" or "{0} TFLOP"')
_SPEED = _Quantity(
    "compute rate",
    _per_second(_FLOP, "S") | _per_second(_FLOP),
    "FLOP/s",
    limit=10**24,
    examples='"{0} TFLOPS" or "{0} PFLOPS"',
    positive=True,
)
_POWER = _Quantity("power", _prefixed("W", "k M"), "W", limit=10**9, examples='"{0} W" or "{0} kW"')
_QUANTITIES = (_SIZE, _RATE, _TIME, _WORK, _SPEED, _POWER)

_NUMBER = re.compile(r"(-?)([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?([0-9]+))?) *([^\W\d_].*)?")
_NOT_FINITE = re.compile(r"[+-]?\.?(nan|inf|infinity)\b.*", re.IGNORECASE)
_PER_SECOND = re.compile(r"/s$|(?<!flo)ps$|(?<=[bp])s$", re.IGNORECASE)
_LONGEST = 64
"""Longest text of a quantity [characters]; longer numbers would take time to read."""


def _quoted(text: str) -> str:
    return f'"{printable(text)}"'


def _either(number: str, units: Iterable[str]) -> str:
    return " or ".join(f'"{number} {unit}"' for unit in units)


def _stem(unit: str) -> str:
    """Return the unit without "per second" in any spelling, to compare GB with GB/s, GBps and GBs."""
    return _PER_SECOND.sub("", unit.replace("bit", "b"))


def _meant(unit: str, quantity: _Quantity, *, exactly: bool) -> list[str]:
    """Return the units of the quantity that a user who wrote ``unit`` may have meant."""
    # Synonyms share a key, and the first spelling of each is the one to recommend.
    spellings = {(_stem(name), scale): name for name, scale in reversed(quantity.units.items())}
    matches = [name for (stem, _), name in spellings.items() if stem == _stem(unit)]
    if not matches and not exactly:
        near = _stem(unit).casefold().replace("i", "")
        matches = [
            name
            for (stem, _), name in spellings.items()
            if stem.casefold().replace("i", "") in {near, f"{near}b"}
        ]
    return matches[::-1]


def _wrong_unit(text: str, number: str, unit: str, quantity: _Quantity) -> ValueError:
    """Return an error that says what the unit measures, if anything, and what was probably meant."""
    if re.fullmatch("[kMGT]?T/s", unit):
        return ValueError(
            f"{_quoted(text)} counts transfers, not bytes; give the PCIe generation and the number of lanes"
        )
    if quantity.name == "size" and (unit in _BITS or unit.casefold().endswith("bit")):
        hint = f"; did you mean {number} {unit[:-1]}B?" if unit in _BITS else ""
        return ValueError(f"{_quoted(text)} counts bits, and sizes are counted in bytes (1 B = 8 b){hint}")
    other = next((other.name for other in _QUANTITIES if unit in other.units), None)
    meant = _meant(unit, quantity, exactly=other is not None)
    hint = f"did you mean {_either(number, meant)}?" if meant else quantity.advice(number)
    if other is not None:
        return ValueError(f"{_quoted(text)} is a {other}, not a {quantity.name}; {hint}")
    return ValueError(f"{_quoted(text)}: {_quoted(unit)} is not a unit of {quantity.name}; {hint}")


def _parse(text: str, quantity: _Quantity) -> Fraction:
    """Parse a quantity exactly, in its base unit.

    Raises ValueError with what is wrong and what to write instead.
    """
    text = text.strip(" ")
    if len(text) > _LONGEST:
        raise ValueError(f"{_quoted(text[:_LONGEST])}… is too long for a {quantity.name}")
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"must be a finite {quantity.name}, got {_quoted(text)}")
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{_quoted(text)} is not a {quantity.name}; {quantity.advice('40')}")
    sign, number, exponent, unit = match.groups()
    if unit is None:
        raise ValueError(f"{_quoted(text)} has no unit; {quantity.advice(number)}")
    if len(exponent or "") > 3:
        raise ValueError(f"{_quoted(text)} has too large an exponent")
    if unit not in quantity.units:
        raise _wrong_unit(text, number, unit, quantity)
    value = Fraction(number) * quantity.units[unit]
    if sign == "-":
        raise ValueError(f"must not be negative, got {_quoted(text)}")
    if value > quantity.limit:
        limit = f"{quantity.limit:.0e}".replace("+", "")
        raise ValueError(f"{_quoted(text)} is above the limit of {limit} {quantity.base}; check the unit")
    if quantity.integer:
        value = Fraction(round(value))
    if quantity.positive and not value:
        raise ValueError(f"must be above 0, got {_quoted(text)}")
    return value


def written_out(text: str) -> str:
    """Return "; write 32768" for a number of tokens such as 32k, and "" for any other text.

    >>> written_out("32k"), written_out("k")
    ('; write 32768', '')
    """
    thousands = text.strip().lower().removesuffix("k")
    known = thousands != text.strip().lower() and thousands.isascii() and thousands.isdigit()
    return f"; write {int(thousands) * 1024}" if known and len(thousands) < _LONG else ""


_LONG = 7  # digits of a number of thousands that is no mistake


def parse_bytes(text: str) -> int:
    """Parse a size such as "40 GB" or "16 GiB" [B], rounded to integer bytes. Raises ValueError."""
    return int(_parse(text, _SIZE))


def parse_rate(text: str) -> int:
    """Parse a rate above zero such as "25 GB/s" or "200 Gb/s" [B/s], rounded to integer bytes. Raises
    ValueError."""
    return int(_parse(text, _RATE))


def parse_seconds(text: str) -> float:
    """Parse a time such as "90 us" or "2 h" [s]. Raises ValueError."""
    return float(_parse(text, _TIME))


def parse_flops(text: str) -> float:
    """Parse a number of floating-point operations such as "21 GFLOP" [FLOP]. Raises ValueError."""
    return float(_parse(text, _WORK))


def parse_flops_rate(text: str) -> float:
    """Parse a compute rate above zero such as "312 TFLOPS" or "312 TFLOP/s" [FLOP/s]. Raises ValueError."""
    return float(_parse(text, _SPEED))


def parse_watts(text: str) -> float:
    """Parse a power such as "400 W" [W]. Raises ValueError."""
    return float(_parse(text, _POWER))


def in_unit(text: str, unit: str) -> float:
    """Parse a quantity and return its number in a unit. Raises ValueError for what that unit cannot measure,
    and for a number without a unit."""
    quantity = next(one for one in _QUANTITIES if unit in one.units)
    return float(_parse(text, quantity._replace(integer=False)) / quantity.units[unit])


def is_unit(text: str) -> bool:
    """Return whether a text is the unit of a quantity."""
    return any(text in one.units for one in _QUANTITIES)


def format_number(value: float, *, digits: int = 3) -> str:
    """Format a number for people with ``digits`` significant digits, or all before the point; never an
    exponent."""
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def percent(fraction: float) -> str:
    """Return a fraction as "81 %", below 10 % with one decimal."""
    if 0 < fraction < 0.0005:
        return "<0.1 %"
    return f"{fraction * 100:.1f} %" if 0 < fraction < 0.0995 else f"{fraction * 100:.0f} %"


def per_second(rate: float, unit: str = " tokens/s") -> str:
    """Return a rate with its unit: "3.86 tokens/s", "1,204 tokens/s"."""
    return f"{rate:,.0f}{unit}" if rate >= 100 else f"{format_number(rate)}{unit}"


def _readable(value: float, units: Scales) -> str:
    """Return three significant digits, or all digits before the point, in the largest unit not above the
    value."""
    fitting = (unit for unit, scale in units.items() if float(f"{abs(value) / float(scale):.3g}") >= 1)
    unit = next(fitting, next(reversed(units)))
    number = value / float(units[unit])
    digits = f"{number:.0f}" if abs(number) >= 100 else format_number(number)
    return f"{digits} {unit}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 GPU", "8 GPUs"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_bytes(size: float, *, binary: bool = False) -> str:
    """Format a size [B] for people: "42.9 GB", or "40 GiB" if ``binary``."""
    return _readable(size, _IBYTES if binary else _BYTES)


def formatted_apart(needed: float, has: float, *, binary: bool = False) -> tuple[str, str]:
    """Format two different sizes [B] for people with as many digits as tell them apart: "79.24 GiB" and
    "79.19 GiB"."""
    units = _IBYTES if binary else _BYTES
    texts = format_bytes(needed, binary=binary), format_bytes(has, binary=binary)
    if needed == has or texts[0] != texts[1]:
        return texts
    unit = texts[0].rpartition(" ")[2]
    scale = float(units[unit])
    pairs = (tuple(f"{one / scale:.{digits}f}" for one in (needed, has)) for digits in range(1, 13))
    first, second = next((one for one in pairs if one[0] != one[1]), texts)
    return f"{first} {unit}", f"{second} {unit}"


def format_rate(rate: float) -> str:
    """Format a rate [B/s] for people: "25 GB/s"."""
    return _readable(rate, _per_second(_BYTES))


def format_seconds(seconds: float) -> str:
    """Format a time [s] for people: "90 us", "19.3 s", "1.5 h"."""
    # Without minutes: 90 s and 300 s stay comparable at a glance.
    shown = {unit: scale for unit, scale in _TIME.units.items() if unit in _TIMES and unit != "min"}
    return _readable(seconds, shown) if seconds else "0 s"


def format_flops(work: float) -> str:
    """Format a number of floating-point operations for people: "21.4 GFLOP"."""
    return _readable(work, _WORK.units)


def format_watts(power: float) -> str:
    """Format a power [W] for people: "692 W", "1.84 kW"."""
    return _readable(power, _POWER.units)


def _exact(value: float, quantity: _Quantity) -> str:
    """Return the shortest text that parses to exactly the same number."""
    if not value:
        return f"0 {quantity.base}"
    texts = [f"{value!r} {quantity.base}"]
    for unit, scale in quantity.units.items():
        digits = f"{float(value / scale):.6g}"
        read_back = Fraction(digits) * scale
        if (round(read_back) if quantity.integer else float(read_back)) == value:
            texts.append(f"{digits} {unit}")
    return min(texts, key=len)


def _described(quantity: _Quantity) -> dict[str, Any]:
    """Return the JSON schema of text with a unit: numbers as ``_parse`` reads them, in any unit of the
    quantity."""
    units = "|".join(map(re.escape, quantity.units))
    return {
        "title": quantity.name,
        "type": "string",
        "pattern": rf"^ *[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)? *({units}) *$",
        "examples": re.findall('"(.*?)"', quantity.examples.format(40)),
    }


def _boundary(quantity: _Quantity) -> tuple[BeforeValidator, PlainSerializer, WithJsonSchema]:
    """Return validators that accept text with a unit and nothing else, and write such text to JSON."""

    def read(value: Any) -> int | float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)  # refused below, with advice that shows the number
        if not isinstance(value, str):
            raise ValueError(f"must be text with a unit; {quantity.advice('40')}")
        number = _parse(value, quantity)
        return int(number) if quantity.integer else float(number)

    def write(value: float) -> str:
        return _exact(value, quantity)

    written = PlainSerializer(write, return_type=str, when_used="json")
    return BeforeValidator(read), written, WithJsonSchema(_described(quantity), mode="validation")


Bytes = Annotated[int, *_boundary(_SIZE)]
"""A size in bytes [B]."""
PositiveBytes = Annotated[int, *_boundary(_CAPACITY)]
"""A size in bytes above zero [B]."""
BytesPerSecond = Annotated[int, *_boundary(_RATE)]
"""A rate above zero [B/s]."""
Seconds = Annotated[float, *_boundary(_TIME)]
"""A time in seconds [s]."""
Flops = Annotated[float, *_boundary(_WORK)]
"""A number of floating-point operations [FLOP]."""
FlopsPerSecond = Annotated[float, *_boundary(_SPEED)]
"""A compute rate above zero [FLOP/s]."""
Watts = Annotated[float, *_boundary(_POWER)]
"""An electrical power in watts [W]."""
