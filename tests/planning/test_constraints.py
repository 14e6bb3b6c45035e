"""Conditions on points."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.extensions.sweep.definition import ConstraintError, compile_constraint, operand

NAMES: dict[str, Any] = {
    "workload.batch_size": 8,
    "ranks": 4,
    "weights": "raid",
    "read": "40 GB/s",
    "pinned": True,
    "size": "3 GB",
}


def find(name: str) -> Any:
    if name not in NAMES:
        raise ConstraintError(f'there is no "{name}"')
    return lambda _choice: operand(NAMES[name])


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("workload.batch_size * ranks <= 32", True),
        ("workload.batch_size * ranks < 32", False),
        ("workload.batch_size % ranks == 0 and ranks // 3 == 1", True),
        ("1 < ranks < 4", False),
        ("1 < ranks <= 4", True),
        ("-ranks + 5 > 0.5", True),
        ("ranks / 8 == 0.5", True),
        ("weights == 'raid'", True),
        ("weights in ('dram', 'nfs')", False),
        ("weights not in ('dram', 'nfs')", True),
        ("size / '5 s' < read", True),
        ("not weights != 'raid'", True),
        ("weights == 'dram' or ranks == 4", True),
        ("read >= '40 GB/s' and read < '0.5 Tb/s'", True),
        ("read == '40000 MB/s'", True),
        ("read > 39e9", True),
        ("40e9 - 1e9 < read", True),
        ("size / read < '0.1 s' and read * '1 s' > size", True),
        ("(size + '1 GB') / size < 2", True),
        ("-size < '1 B'", True),
        ("size * ranks > '10 GB'", True),
        ("size + 1 > '3 GB' and 1 + size > 3e9", True),
        ("(size + 1) * 2 == '6 GB'", False),
        ("size % 7 < '7 B' and size % '2 GB' == '1 GB'", True),
        ("size in (3e9, size + '1 GB')", True),
        ("size not in (4e9, '3 GB')", False),
        ("size != '3 GB'", False),
        ("weights in ('3 GB', 3, 'raid')", True),
        ("pinned == True", True),
    ],
)
def test_what_holds(text: str, holds: bool) -> None:
    assert compile_constraint(text, find)(()) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("ranks <=", "cannot be read"),
        ("ranks", "is not a condition"),
        ("ranks + 1", "is not a condition"),
        ("ranks = 4", "cannot be read"),
        ("rank < 3", 'there is no "rank"'),
        ("__import__('os').system('true') == 0", "is not possible in a condition"),
        ("(lambda: 1)() == 1", "is not possible in a condition"),
        ("[x for x in (1, 2)] == 1", "is not possible in a condition"),
        ("9 ** 9 ** 9 > ranks", "is not possible in a condition"),
        ("ranks << 9 > 1", "is not possible in a condition"),
        ("ranks in (1, 4) == pinned", 'write "x in (1, 2)"'),
        ("(1, 4) == ranks", 'write "x in (1, 2)"'),
        ("ranks is None", 'write "x in (1, 2)"'),
        ("ranks in weights", 'write "x in (1, 2)"'),
        ("f'{ranks}' == '4'", "is not possible in a condition"),
        ("(" * 400 + "1" + ")" * 400 + " < 2", "longer than 500 characters"),
        ("(" * 240 + "1" + ")" * 240 + " < 2", "cannot be read"),
    ],
)
def test_what_is_no_condition(text: str, message: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        compile_constraint(text, find)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / (ranks - 4) > 0", "divides by zero"),
        ("weights < 3", '"raid" is not a number'),
        ("read < '50 GBs'", '"50 GBs" is not a number'),
        ("weights * 1000000000 == 'x'", '"raid" is not a number'),
        ("pinned + 1 > 1", '"True" is not a number'),
        ("ranks == 'raid'", 'compares text ("raid") with a number'),
        ("weights != 3", 'compares text ("raid") with a number'),
    ],
)
def test_what_cannot_be_decided(text: str, message: str) -> None:
    holds = compile_constraint(text, find)
    with pytest.raises(ConstraintError) as caught:
        holds(())
    assert message in str(caught.value)
