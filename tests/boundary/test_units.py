"""Quantities are read exactly, and wrong ones are refused with a message."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simoffload.units import (
    format_bytes,
    format_number,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_flops,
    parse_flops_rate,
    parse_rate,
    parse_seconds,
    parse_watts,
)

Parser = Callable[[str], float]


def exactly(message: str) -> str:
    """Return a pattern for a complete message."""
    return rf"\A{re.escape(message)}\Z"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0 B", 0),
        ("1 B", 1),
        ("40 GB", 40 * 10**9),
        ("40GB", 40 * 10**9),
        ("  40   GB ", 40 * 10**9),
        ("40 GiB", 40 * 2**30),
        ("1 kB", 1000),
        ("1 KiB", 1024),
        ("1 MB", 10**6),
        ("1 MiB", 2**20),
        ("1 TB", 10**12),
        ("1 TiB", 2**40),
        ("1 PB", 10**15),
        ("1 PiB", 2**50),
        ("1 EB", 10**18),
        ("1 EiB", 2**60),
        ("1EB", 10**18),  # not a number with an exponent
        ("1E6 B", 10**6),
        ("1e6B", 10**6),
        ("1.5e-3 MB", 1500),
        ("007 B", 7),
        ("0.1 B", 0),
        ("0.6 B", 1),
        # Beyond what a float holds exactly, and where one would round wrongly.
        ("123456789.123456789 GB", 123456789123456789),
        ("0.3 kB", 300),
        ("1000 EB", 10**21),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size
    assert type(parse_bytes(text)) is int


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("25 GB/s", 25 * 10**9),
        ("25 GBps", 25 * 10**9),
        ("25 GiB/s", 25 * 2**30),
        ("1 GiBps", 2**30),
        ("200 Gb/s", 25 * 10**9),
        ("200Gb/s", 25 * 10**9),
        ("200 Gbit/s", 25 * 10**9),
        ("200 Gbps", 25 * 10**9),
        ("100 Mb/s", 12_500_000),
        ("8 b/s", 1),
        ("8 bit/s", 1),
        ("8 kb/s", 1000),
        ("1 Tb/s", 125 * 10**9),
        ("1 TB/s", 10**12),
        ("1 B/s", 1),
        ("3 kB/s", 3000),
    ],
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate(text) == rate
    assert type(parse_rate(text)) is int


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90 us", 90e-6),
        ("90 \N{MICRO SIGN}s", 90e-6),
        ("90 \N{GREEK SMALL LETTER MU}s", 90e-6),
        ("1 ns", 1e-9),
        ("4.7 ms", 4.7e-3),
        ("0 s", 0.0),
        ("2 min", 120.0),
        ("1.5 h", 5400.0),
        ("1 d", 86400.0),
        ("1e-999 s", 0.0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_flops, "21 GFLOP", 21e9),
        (parse_flops, "1 FLOP", 1.0),
        (parse_flops, "3 EFLOP", 3e18),
        (parse_flops_rate, "312 TFLOPS", 312e12),
        (parse_flops_rate, "312 TFLOP/s", 312e12),
        (parse_flops_rate, "1 PFLOPS", 1e15),
        (parse_watts, "400 W", 400.0),
        (parse_watts, "10.2 kW", 10200.0),
        (parse_watts, "0 W", 0.0),
    ],
)
def test_operations_and_power(parse: Parser, text: str, value: float) -> None:
    assert parse(text) == value


SIZE_ADVICE = 'write e.g. "40 GB" or "40 GiB"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("200", '"200" has no unit; write e.g. "200 GB" or "200 GiB"'),
        ("1e9", '"1e9" has no unit; write e.g. "1e9 GB" or "1e9 GiB"'),
        ("-1", '"-1" has no unit; write e.g. "1 GB" or "1 GiB"'),
        ("", f'"" is not a size; {SIZE_ADVICE}'),
        ("GB", f'"GB" is not a size; {SIZE_ADVICE}'),
        ("6,9 GB", f'"6,9 GB" is not a size; {SIZE_ADVICE}'),
        ("1_000 B", f'"1_000 B" is not a size; {SIZE_ADVICE}'),
        (".5 GB", f'".5 GB" is not a size; {SIZE_ADVICE}'),
        ("+5 GB", f'"+5 GB" is not a size; {SIZE_ADVICE}'),
        ("5 GB\n", f'"5 GB\\n" is not a size; {SIZE_ADVICE}'),
        ("٤٠ GB", f'"٤٠ GB" is not a size; {SIZE_ADVICE}'),
        ("40\u00a0GB", f'"40\\xa0GB" is not a size; {SIZE_ADVICE}'),
        ("1/2 GB", f'"1/2 GB" is not a size; {SIZE_ADVICE}'),
        ("40 %", f'"40 %" is not a size; {SIZE_ADVICE}'),
        ("40 G", '"40 G": "G" is not a unit of size; did you mean "40 GB" or "40 GiB"?'),
        ("40 KB", '"40 KB": "KB" is not a unit of size; did you mean "40 kB" or "40 KiB"?'),
        ("40 mb", '"40 mb": "mb" is not a unit of size; did you mean "40 MB" or "40 MiB"?'),
        ("40 gib", '"40 gib": "gib" is not a unit of size; did you mean "40 GB" or "40 GiB"?'),
        ("40 GB x", f'"40 GB x": "GB x" is not a unit of size; {SIZE_ADVICE}'),
        ("40 GBit", '"40 GBit" counts bits, and sizes are counted in bytes (1 B = 8 b)'),
        ("100 Gb", '"100 Gb" counts bits, and sizes are counted in bytes (1 B = 8 b); did you mean 100 GB?'),
        ("100 gbit", '"100 gbit" counts bits, and sizes are counted in bytes (1 B = 8 b)'),
        ("6.9 GB/s", '"6.9 GB/s" is a rate, not a size; did you mean "6.9 GB"?'),
        ("1TB/s", '"1TB/s" is a rate, not a size; did you mean "1 TB"?'),
        ("40 Gb/s", f'"40 Gb/s" is a rate, not a size; {SIZE_ADVICE}'),
        ("40 ms", f'"40 ms" is a time, not a size; {SIZE_ADVICE}'),
        ("-5 GB", 'must not be negative, got "-5 GB"'),
        ("nan", 'must be a finite size, got "nan"'),
        ("NaN GB", 'must be a finite size, got "NaN GB"'),
        ("-inf", 'must be a finite size, got "-inf"'),
        (".inf", 'must be a finite size, got ".inf"'),
        ("Infinity B", 'must be a finite size, got "Infinity B"'),
        ("1e36 B", '"1e36 B" is above the limit of 1e21 B; check the unit'),
        ("1e400 B", '"1e400 B" is above the limit of 1e21 B; check the unit'),
        ("1001 EB", '"1001 EB" is above the limit of 1e21 B; check the unit'),
        ("1e9999 B", '"1e9999 B" has too large an exponent'),
        ("1e-9999 B", '"1e-9999 B" has too large an exponent'),
        ("9" * 70 + " B", f'"{"9" * 64}"… is too long for a size'),
        ("\x1b[2J", f'"\\x1b[2J" is not a size; {SIZE_ADVICE}'),
    ],
)
def test_refused_sizes(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=exactly(message)):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("200", '"200" has no unit; write e.g. "200 GB/s" (bytes) or "200 Gb/s" (bits)'),
        ("6.9 GB", '"6.9 GB" is a size, not a rate; did you mean "6.9 GB/s"?'),
        ("6.9 GiB", '"6.9 GiB" is a size, not a rate; did you mean "6.9 GiB/s"?'),
        ("200 Gb", '"200 Gb": "Gb" is not a unit of rate; did you mean "200 Gb/s"?'),
        ("200 MBS", '"200 MBS": "MBS" is not a unit of rate; did you mean "200 MB/s"?'),
        ("200 GB/S", '"200 GB/S": "GB/S" is not a unit of rate; did you mean "200 GB/s"?'),
        (
            "32 mB/s",
            '"32 mB/s": "mB/s" is not a unit of rate; did you mean "32 MB/s" or "32 MiB/s" or "32 Mb/s"?',
        ),
        (
            "40 G/s",
            '"40 G/s": "G/s" is not a unit of rate; did you mean "40 GB/s" or "40 GiB/s" or "40 Gb/s"?',
        ),
        (
            "64 GT/s",
            '"64 GT/s" counts transfers, not bytes; give the PCIe generation and the number of lanes',
        ),
        ("0 GB/s", 'must be above 0, got "0 GB/s"'),
        ("1e-9 B/s", 'must be above 0, got "1e-9 B/s"'),
        ("-1 GB/s", 'must not be negative, got "-1 GB/s"'),
        ("2 EB/s", '"2 EB/s" is above the limit of 1e18 B/s; check the unit'),
        (
            "5 TFLOPS",
            '"5 TFLOPS" is a compute rate, not a rate; write e.g. "5 GB/s" (bytes) or "5 Gb/s" (bits)',
        ),
    ],
)
def test_refused_rates(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=exactly(message)):
        parse_rate(text)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_seconds, "5", '"5" has no unit; write e.g. "5 us", "5 ms" or "5 s"'),
        (parse_seconds, "5 m", '"5 m": "m" is not a unit of time; write e.g. "5 us", "5 ms" or "5 s"'),
        (parse_seconds, "1 MS", '"1 MS": "MS" is not a unit of time; did you mean "1 ms"?'),
        (parse_seconds, "12:30", '"12:30" is not a time; write e.g. "40 us", "40 ms" or "40 s"'),
        (parse_seconds, "-5 us", 'must not be negative, got "-5 us"'),
        (parse_seconds, "1e11 s", '"1e11 s" is above the limit of 1e10 s; check the unit'),
        (parse_flops_rate, "312", '"312" has no unit; write e.g. "312 TFLOPS" or "312 PFLOPS"'),
        (
            parse_flops_rate,
            "312 TFLOP",
            '"312 TFLOP" is a FLOP count, not a compute rate; did you mean "312 TFLOPS"?',
        ),
        (
            parse_flops_rate,
            "312 TFlops",
            '"312 TFlops": "TFlops" is not a unit of compute rate; did you mean "312 TFLOPS"?',
        ),
        (parse_flops_rate, "0 TFLOPS", 'must be above 0, got "0 TFLOPS"'),
        (parse_flops_rate, "1e25 FLOPS", '"1e25 FLOPS" is above the limit of 1e24 FLOP/s; check the unit'),
        (parse_flops, "1 TFLOPS", '"1 TFLOPS" is a compute rate, not a FLOP count; did you mean "1 TFLOP"?'),
        (parse_flops, "1e31 FLOP", '"1e31 FLOP" is above the limit of 1e30 FLOP; check the unit'),
        (parse_watts, "400w", '"400w": "w" is not a unit of power; did you mean "400 W"?'),
        (parse_watts, "2 GW", '"2 GW": "GW" is not a unit of power; write e.g. "2 W" or "2 kW"'),
    ],
)
def test_other_refused_quantities(parse: Parser, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=exactly(message)):
        parse(text)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_bytes, parse_rate, parse_seconds, parse_flops, parse_flops_rate, parse_watts):
        try:
            outcome: float | str = parse(text)
        except ValueError as error:
            outcome = str(error)
        assert outcome.isprintable() if isinstance(outcome, str) else 0 <= outcome < math.inf


@pytest.mark.parametrize(
    ("size", "decimal", "binary"),
    [
        (0, "0 B", "0 B"),
        (1, "1 B", "1 B"),
        (999, "999 B", "999 B"),
        (1000, "1 kB", "1000 B"),
        (1023, "1.02 kB", "1023 B"),
        (42_949_672_960, "42.9 GB", "40 GiB"),
        (999_600_000_000, "1 TB", "931 GiB"),
        (1010 * 2**30, "1.08 TB", "1010 GiB"),
        (-5_000_000_000, "-5 GB", "-4.66 GiB"),
        (10**21, "1000 EB", "867 EiB"),
    ],
)
def test_sizes_for_people(size: int, decimal: str, binary: str) -> None:
    assert format_bytes(size) == decimal
    assert format_bytes(size, binary=True) == binary


@pytest.mark.parametrize(
    ("rate", "text"), [(25e9, "25 GB/s"), (445e6, "445 MB/s"), (0, "0 B/s"), (0.25, "0.25 B/s")]
)
def test_rates_for_people(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3e-13, "0.0003 ns"),
        (90e-6, "90 us"),
        (0.0196, "19.6 ms"),
        (0.9999, "1 s"),
        (19.34, "19.3 s"),
        (90, "90 s"),
        (300.4, "300 s"),
        (5400, "1.5 h"),
        (7 * 86400, "7 d"),
        (-0.5, "-500 ms"),
    ],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.0000411, "0.0000411"),
        (0.4112, "0.411"),
        (99.96, "100"),
        (999.6, "1,000"),
        (1e7, "10,000,000"),
    ],
)
def test_numbers_are_shown_without_exponents(value: float, shown: str) -> None:
    assert format_number(value) == shown
