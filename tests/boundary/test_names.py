"""Names as people write them."""

from __future__ import annotations

import pytest

from simoffload.documents import candidates, folded, named

KNOWN = ("rtx-4090", "rtx-4090-2gpu", "h100-sxm", "h100-nvl", "gemma-2-2b", "gemma-2-27b")


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("rtx4090", ("rtx-4090",)),
        ("RTX_4090", ("rtx-4090",)),
        ("NVIDIA GeForce RTX 4090", ("rtx-4090",)),
        ("rtx4090 2gpu", ("rtx-4090-2gpu",)),
        ("Tesla H100-SXM", ("h100-sxm",)),
        ("gemma 2 2B", ("gemma-2-2b",)),
        ("gemma-22b", ()),
        ("h100", ()),
        ("", ()),
        ("nvidia-", ()),
    ],
)
def test_spellings_of_one_name(wanted: str, meant: tuple[str, ...]) -> None:
    assert named(wanted, KNOWN) == meant


def test_an_exact_name_wins_over_others_of_the_same_spelling() -> None:
    assert named("a-b", ("ab", "a-b")) == ("a-b",)
    assert named("A_B", ("ab", "a-b")) == ("ab", "a-b")


def test_what_begins_so_is_suggested_before_what_is_similar() -> None:
    assert candidates("h100", KNOWN) == '; did you mean "h100-sxm" or "h100-nvl"?'
    assert candidates("rtx-4900", KNOWN) == '; did you mean "rtx-4090"?'


def test_a_long_text_costs_no_time() -> None:
    assert named("rtx-4090" + "-x" * 10**6, KNOWN) == ()


def test_folding_is_stable() -> None:
    assert all(folded(folded(name)) == folded(name) for name in KNOWN)
