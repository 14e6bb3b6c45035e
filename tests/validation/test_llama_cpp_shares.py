"""Shares of ggml's kernels by architecture are those of the input half of the logs, which the other half
judges."""

from __future__ import annotations

from statistics import median

import pytest

from simoffload.hardware import Accelerator, ggml, ggml_kernels, load_profile, shipped_unmeasured
from validation.llama_cpp import predicted_rate
from validation.llama_cpp_shares import derived, known, logged

ELSEWHERE = shipped_unmeasured().accelerator.ggml


@pytest.mark.parametrize("capability", ["7.5", "8.6", "8.9", "12.0"])
@pytest.mark.parametrize("number", ["prompts", "experts", "reads", "expert_reads"])
def test_cards_for_desks_have_the_middle_input_row(capability: str, number: str) -> None:
    """A share changes others, so that a derived one is near the shipped one, not equal to it."""
    assert derived(capability, number) == pytest.approx(known(capability, number), rel=0.03)


def test_prompts_of_mixtures_are_as_fast_as_their_tiles_are_full() -> None:
    """512 tokens, 8 of 128 experts each, are 32 of 128 columns: a quarter of the tile; 2,048 fill half of the
    tiles behind the first of each expert. With 64 tokens a tile has 64 columns, of which 4 are used."""
    kernels = ELSEWHERE.of(8.6, peak=1e12, single=1e12, measured=False)
    full = kernels.products.at(512) * ELSEWHERE.experts.value * 128 / (128 + 23)
    assert kernels.expert_share(32, tokens=512) == pytest.approx(full / 4)
    assert kernels.expert_share(128, tokens=2048) == pytest.approx(full / 1.5)
    assert kernels.expert_share(4, tokens=64) == pytest.approx(full * 151 / 128 * 4 / (64 + 23))
    assert kernels.grouped is None


def test_full_tiles_explain_what_experts_reach_on_an_h100() -> None:
    """Nine measured shares for 1 to 256 tokens of an expert, 27 times apart, are within 40 % of the law."""
    card = load_profile("accelerator", "h100-sxm")
    assert isinstance(card, Accelerator)
    assert card.ggml is not None
    measured = card.ggml.grouped
    assert measured is not None
    law = card.ggml.model_copy(update={"grouped": None, "experts": ELSEWHERE.experts})
    tokens = {1: 16, 2: 32, 4: 32, 8: 128, 16: 128, 32: 512, 64: 512, 128: 2048, 256: 2048}
    ratios = [share / law.expert_share(rows, tokens=tokens[int(rows)]) for rows, share in measured.points]
    middle = median(ratios)
    assert 1.3 < middle < 1.7, "products alone; elsewhere what is between them is included"
    assert all(0.6 < one / middle < 1.4 for one in ratios)


def test_blackwell_multiplies_mxfp4_in_four_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pull request 17906 of llama.cpp: gpt-oss-20b on an RTX 5090 from 10,561 to 13,305 tokens/s."""
    keys = ["model.quantization=mxfp4_moe", "strategy.gpu_layers=all"]

    def rate(card: str) -> float:
        return predicted_rate("gpt-oss-20b", card, keys, prompt=512, generated=0, depth=0)[0]

    native, older = rate("rtx-5090-workstation"), rate("rtx-4090-desktop")
    monkeypatch.setattr(ggml, "_FOUR_BITS", 99.0)
    assert native / rate("rtx-5090-workstation") == pytest.approx(13305 / 10561, rel=0.03)
    assert older == rate("rtx-4090-desktop")


def test_the_judging_half_is_inside_and_its_middle_near_one() -> None:
    """At least 70 % in intervals of P90/P10 at most 2.2."""
    judging = [one for one in logged() if one.judges]
    assert 0.85 < median(one.ratio for one in judging) < 1.2
    assert sum(one.inside for one in judging) >= 0.7 * len(judging)
    assert median(one.factors[1] / one.factors[0] for one in judging) < 2.2


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
