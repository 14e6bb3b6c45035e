"""Axes and ranges, as they are written in files and on the command line."""

from __future__ import annotations

import pytest

from simoffload.errors import InputError
from simoffload.extensions.sweep.definition import Axis, parse_axis


def axis(text: str) -> Axis:
    return parse_axis(text, most=1000)


@pytest.mark.parametrize(
    ("written", "values", "texts"),
    [
        ("1,2,4", (1, 2, 4), ("1", "2", "4")),
        ("1e9, 4e9", (1e9, 4e9), ("1e9", "4e9")),
        ("raid,nfs", ("raid", "nfs"), ("raid", "nfs")),
        ("[true, null]", (True, None), ("true", "null")),
        ("40 GB/s, 80 GB/s", ("40 GB/s", "80 GB/s"), ("40 GB/s", "80 GB/s")),
        ("{choices: [[1, 2], {a: b}]}", ([1, 2], {"a": "b"}), ("[1, 2]", '{"a": "b"}')),
        ("range(min=1, max=7, step=2)", (1, 3, 5, 7), ("1", "3", "5", "7")),
        ("range(min=1, max=8, step=3)", (1, 4, 7), ("1", "4", "7")),
        ("range(min=0.1, max=0.4, step=0.1)", (0.1, 0.2, 0.3, 0.4), ("0.1", "0.2", "0.3", "0.4")),
        ("range(min=0, max=1, step=0.5)", (0.0, 0.5, 1.0), ("0.0", "0.5", "1.0")),
        ("range(min=1, max=64, n=7, scale=log)", (1, 2, 4, 8, 16, 32, 64), None),
        ("range(min=1, max=8, n=8, scale=log)", (1, 2, 3, 4, 6, 8), None),
        ("range(min=1, max=10, n=4)", (1, 4, 7, 10), None),
        ("range(min=0.0, max=1.0, n=5)", (0.0, 0.25, 0.5, 0.75, 1.0), None),
        ("range(min=10 GB/s, max=1000 GB/s, n=3, scale=log)", ("10 GB/s", "100 GB/s", "1000 GB/s"), None),
        ("range(min=1 GB/s, max=2 GB/s, n=3)", ("1 GB/s", "1.5 GB/s", "2 GB/s"), None),
        ("range(min=90 us, max=100 us, step=5 us)", ("90 us", "95 us", "100 us"), None),
        ("range(min=5, max=5, n=1)", (5,), ("5",)),
        ("{range: {min: 1, max: 3, n: 2, step: null}, choices: null}", (1, 3), None),
        ("{range: {min: 1e3, max: 3e3, step: 1e3}}", (1000.0, 2000.0, 3000.0), None),
    ],
)
def test_values(written: str, values: tuple[object, ...], texts: tuple[str, ...] | None) -> None:
    found = axis(f"a.b={written}")
    assert found.values == values
    assert [type(one) for one in found.values] == [type(one) for one in values]
    assert found.texts == (texts or tuple(map(str, values)))


@pytest.mark.parametrize(
    ("path", "location", "name"),
    [
        ("workload.batch_size", ("workload", "batch_size"), "workload.batch_size"),
        ("a.b[0].c", ("a", "b", 0, "c"), "a.b[0].c"),
        ('profiles."x-7.68tb".read', ("profiles", "x-7.68tb", "read"), 'profiles."x-7.68tb".read'),
    ],
)
def test_paths(path: str, location: tuple[str | int, ...], name: str) -> None:
    found = axis(f"{path}=1,2")
    assert (found.location, found.name) == (location, name)


@pytest.mark.parametrize(
    ("written", "key", "message"),
    [
        ("a", "", "has no values; write e.g. workload.batch_size=1,2,4"),
        ("a=", "", "has no values"),
        ("a=[]", "a.choices", "must be a list of at least 1, got a list of 0"),
        ("a={}", "a", "give either choices or range"),
        ("a={choices: 3}", "a.choices", "must be a list, got 3"),
        ("a={choices: [1], range: {min: 1, max: 2, n: 2}}", "a", "give either choices or range"),
        ("a={choices: [1], range: 3}", "a.range", "must be a mapping, got 3"),
        ("a={values: [1]}", "a.values", "unknown key (known here: choices, range, name)"),
        ("a={choices: [1], name: b-c}", "a.name", "must be a word of letters, digits and _"),
        ("a..b=1", "a..b", "is not the path of a key"),
        ("a=range(1, 8)", "a", "write a range as range(min=1, max=64, step=1)"),
        ("a=range(min=1, max=8", "a", "write a range as range(min=1, max=64, step=1)"),
        ("a=range(min=1)", "a.range.max", "required key is missing"),
        ("a=range(min=1, max=8)", "a.range", "give either step or n"),
        ("a=range(min=1, max=8, n=2, step=1)", "a.range", "give either step or n"),
        ("a=range(min=8, max=1, n=2)", "a.range.min", "8 is above max, 1; exchange them"),
        ("a=range(min=1, max=8, step=0)", "a.range.step", "must be above 0, got 0"),
        ("a=range(min=1, max=8, step=-1)", "a.range.step", "must be above 0, got -1"),
        ("a=range(min=0, max=8, n=3, scale=log)", "a.range.min", "must be above 0 on a logarithmic scale"),
        ("a=range(min=1, max=8, step=1, scale=log)", "a.range.step", "a logarithmic scale has no step"),
        (
            "a=range(min=1, max=8, n=3, scale=cubic)",
            "a.range.scale",
            'must be "linear" or "log", got "cubic"',
        ),
        ("a=range(min=1, max=8, n=0)", "a.range.n", "must be at least 1, got 0"),
        ("a=range(min=0, max=1, n=5)", "a.range.n", "only 2 whole numbers from 0 to 1; write 0.0"),
        ("a=range(min=1, max=2, n=2000)", "a.range.n", "2,000 values are more than the 1,000"),
        ("a=range(min=1, max=1e12, step=1)", "a.range.step", "more than the 1,000 values"),
        ("a=range(min=1 GB/s, max=2 MB/s, n=3)", "a.range.max", "must have the unit of min, GB/s"),
        ("a=range(min=1 GB/s, max=2 GB/s, step=1)", "a.range.step", "must be a number in GB/s, as min"),
        (
            "a=range(min=x, max=2, n=3)",
            "a.range.min",
            'must be a number or a quantity such as 10 GB/s, got "x"',
        ),
        ("a=range(min=true, max=2, n=3)", "a.range.min", "must be a number or a quantity"),
        (
            "a=range(min=1, max=2, n=3, from=3)",
            "a.range.from",
            "unknown key (known here: min, max, step, n, scale)",
        ),
        ("a=1,[2", "a", "not valid YAML"),
    ],
)
def test_slips_name_the_key_and_what_is_valid(written: str, key: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        axis(written)
    (problem,) = caught.value.problems
    assert (problem.path, problem.line, problem.key) == ("--axis", None, key)
    assert message in problem.message
