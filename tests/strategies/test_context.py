"""Room for more tokens than a scenario computes: what each program keeps free for them."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.models import load_model
from simoffload.planning.remedies import smallest_changes
from simoffload.scenario import LoadedScenario, default_scenario
from simoffload.simulation import fit, simulate

ROOM = 8_192
TOKEN = load_model("qwen3-8b").kv_cache_bytes(batch=1, tokens=1)
"""Bytes of the cache of a token: 36 layers, 8 heads of 128, keys and values, 16 bits."""


def scenario(*more: str, batch: int = 1, kind: str = "transformers") -> LoadedScenario:
    work = f"workload={{kind: inference, batch_size: {batch}, prompt_length: 512, output_length: 32}}"
    return default_scenario("qwen3-8b", "h100-1gpu-vm", overrides=(work, f"strategy.kind={kind}", *more))


def cache(loaded: LoadedScenario) -> int:
    return sum(one.size for one in loaded.plan().held if one.kind == "cache")


VLLM = ()


@pytest.mark.parametrize(
    ("kind", "more", "alone", "tokens"),
    [
        ("transformers", (), 2 * 543, 2 * ROOM),
        ("deepspeed", (), 2 * 543, 2 * ROOM),
        ("accelerate", (), 2 * 543, 2 * ROOM),
        ("llama_cpp", (), 2 * 768, 2 * ROOM),  # whole cells of 256
        ("vllm", VLLM, 2 * 544, ROOM),  # whole blocks; it starts with room for one
    ],
)
def test_memory_has_room_for_the_context(kind: str, more: tuple[str, ...], alone: int, tokens: int) -> None:
    assert cache(scenario(*more, kind=kind, batch=2)) == alone * TOKEN
    assert cache(scenario(*more, f"workload.context={ROOM}", kind=kind, batch=2)) == tokens * TOKEN


@pytest.mark.parametrize("kind", ["transformers", "llama_cpp"])
def test_times_are_those_of_prompt_and_output(kind: str) -> None:
    short, roomy = simulate(scenario(kind=kind)), simulate(scenario(f"workload.context={ROOM}", kind=kind))
    assert (roomy.ttft_s, roomy.tpot_s) == (short.ttft_s, short.tpot_s)
    work: dict[str, Any] = {"batch_size": 1, "prompt_length": 512, "output_length": 32}
    assert (short.workload, roomy.workload) == (work, work | {"context": ROOM})


def test_a_context_that_prompt_and_output_exceed_changes_nothing() -> None:
    assert cache(scenario("workload.context=100")) == cache(scenario())


def test_what_has_room_for_the_batch_alone_does_not_fit() -> None:
    refused = simulate(scenario("workload.context=131072", batch=8))
    assert (simulate(scenario(batch=8)).fits, refused.fits) == (True, False)
    assert any("lower context, batch_size" in one for one in refused.advice)


@pytest.mark.parametrize(
    ("more", "edits"),
    [
        (("workload.context=1000000",), {"workload.context"}),
        (("workload.prompt_length=1000000",), {"workload.prompt_length"}),
    ],
)
def test_what_makes_it_fit_is_less_room_or_a_shorter_prompt(more: tuple[str, ...], edits: set[str]) -> None:
    found = smallest_changes(scenario(*more))
    (change,) = (one for one in found if one.kind == "context")
    assert {edit.assignment.partition("=")[0] for edit in change.edits} == edits
    assert fit(scenario(*more).edited(*change.edits)).fits


def test_commands_have_the_context() -> None:
    roomy = f"workload.context={ROOM}"
    assert f" -c {ROOM}" in scenario(roomy, kind="llama_cpp").exports()["llama-server.sh"]
    served = scenario(roomy, *VLLM, kind="vllm").exports()["vllm-serve.sh"]
    assert f"--max-model-len {ROOM} " in served


def test_stated_blocks_must_hold_one_sequence() -> None:
    stated = ("strategy.kv_blocks=100", *VLLM, f"workload.context={ROOM}")
    with pytest.raises(
        InputError, match="100 blocks of 16 tokens are fewer than the 512 that 1 sequence with"
    ):
        scenario(*stated, kind="vllm").plan()
