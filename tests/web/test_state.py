"""The state of a page in its address."""

from __future__ import annotations

import base64
import re
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simoffload.errors import InputError
from simoffload.extensions.web.state import MOST_VARIANTS, State, Variant
from tests.examples import some

SCENARIO = Variant("ddn/bloom-7b1", ("workload.batch_size=8", "platform=dgx-a100"), (("drive/x", 2.5),))


def test_an_address_holds_the_whole_state() -> None:
    state = State((SCENARIO, Variant("name: é\nmodel: x\n", config='{"a": 1}')), 1)
    assert State.of(state.text) == state
    assert len(State((SCENARIO,) * MOST_VARIANTS).text) < 200  # what variants share is written once


def test_the_address_in_the_documentation_can_be_opened() -> None:
    page = (Path(__file__).parents[2] / "docs/page.md").read_text()
    (text,) = re.findall(r"8050/#([^']+)", page)
    assert len(State.of(text).variants) == 3


@settings(max_examples=some(50))
@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(zlib.compress(data)).decode()))
def test_another_address_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match="this address is damaged"):
        State.of(text)


def test_an_address_that_unfolds_to_gigabytes_is_refused() -> None:
    bomb = zlib.compress(b'[[["' + b"a" * 50_000_000 + b'"]]]')
    with pytest.raises(InputError, match="too long"):
        State.of(base64.urlsafe_b64encode(bomb).decode())


def test_an_edit_takes_the_place_of_those_that_it_replaces() -> None:
    variant = Variant("x", ("strategy.weights=raid", 'profiles."drive/x".read=1 GB/s', "nodes=2"))
    assert variant.edited("strategy.weights=dram").edits[-1] == "strategy.weights=dram"
    assert variant.edited("strategy={kind: vllm}").edits == (
        'profiles."drive/x".read=1 GB/s',
        "nodes=2",
        "strategy={kind: vllm}",
    )
    assert variant.edited("platform=p").edits == ("strategy.weights=raid", "platform=p")
    assert variant.edited("nodes").edits == variant.edits[:2]  # without a value: as the base has it


def test_variants_are_kept_and_removed() -> None:
    state = State((SCENARIO,))
    for _ in range(MOST_VARIANTS - 1):
        state = state.kept()
    assert (len(state.variants), state.at) == (MOST_VARIANTS, MOST_VARIANTS - 1)
    with pytest.raises(InputError, match="at most 6 variants"):
        state.kept()
    assert state.removed().at == MOST_VARIANTS - 2
    assert State((SCENARIO,)).removed() == State((SCENARIO,))
