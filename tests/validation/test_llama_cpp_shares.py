"""Shares of ggml's kernels by architecture are those of the input half of the logs, which the other half
judges."""

from __future__ import annotations

from statistics import median

import pytest

from simoffload.hardware import Accelerator, ggml_kernels, load_profile, shipped_unmeasured
from validation.llama_cpp_shares import derived, logged

ELSEWHERE = shipped_unmeasured().accelerator.ggml


@pytest.mark.parametrize("capability", ["7.5", "8.6", "8.9", "12.0"])
@pytest.mark.parametrize("number", ["prompts", "expert_prompts", "reads", "expert_reads"])
def test_cards_for_desks_have_the_middle_input_row(capability: str, number: str) -> None:
    """A share changes others, so that a derived one is near the shipped one, not equal to it."""
    shipped = getattr(ELSEWHERE.architectures[capability], number).value
    assert derived(capability, number) == pytest.approx(shipped, rel=0.03)


def test_the_judging_half_is_inside_and_its_middle_near_one() -> None:
    """At least 70 % in intervals of P90/P10 at most 2.2."""
    judging = [one for one in logged() if one.judges]
    assert 0.85 < median(one.ratio for one in judging) < 1.2
    assert sum(one.inside for one in judging) >= 0.7 * len(judging)
    assert median(one.high / one.low for one in judging) < 2.2


def test_products_follow_the_peak_in_single_precision() -> None:
    """An RTX A6000 and a 3090 are of one architecture; its 16-bit peak is twice as high for its size."""
    cards = [load_profile("accelerator", name) for name in ("rtx-a6000", "rtx-3090")]
    rates = []
    for card in cards:
        assert isinstance(card, Accelerator)
        share = ggml_kernels(card, ELSEWHERE).products.at(512)
        rates.append(share * card.peak("float16") / card.compute.float32.value)
    assert rates == pytest.approx([2.64, 2.64])


def test_another_capability_has_the_shares_of_the_next_older_one() -> None:
    """8.7 is computed as 8.6, 6.1 as the oldest, and a card of another maker as those of data centres."""

    def rate(capability: float | None) -> float:
        return ELSEWHERE.of(capability, peak=1e12, single=1e12, measured=False).products.at(512)

    assert [rate(one) for one in (8.7, 6.1, None)] == [rate(one) for one in (8.6, 7.5, 9.0)]


def test_a_measured_share_of_the_bandwidth_goes_before_that_of_the_architecture() -> None:
    """Then weights are decoded as on an H100."""
    own, other = (ELSEWHERE.of(8.6, peak=1e12, single=1e12, measured=one) for one in (True, False))
    assert own.reads is None
    assert other.reads == ELSEWHERE.architectures["8.6"].reads
    assert own.deciding(experts=True) == (own.kernel_latency, own.decode_experts)
    assert other.deciding(experts=False) == (other.kernel_latency, other.reads)
