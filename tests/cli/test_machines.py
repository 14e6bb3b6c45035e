"""Which machine: each with its best program, a format that fits, and the same work."""

from __future__ import annotations

import json

import pytest

from simoffload.errors import InputError
from simoffload.planning.machines import SPEED, Machines, compare_machines
from simoffload.planning.question import question
from simoffload.simulation import simulate
from tests.cli.conftest import Program

NAMES = ("rtx-4090-desktop", "rtx-5090-workstation", "dgx-h100")


@pytest.fixture(scope="module")
def compared() -> Machines:
    return compare_machines("qwen3-32b", NAMES)


def test_each_has_the_format_with_most_bits_that_its_gpus_hold(compared: Machines) -> None:
    """66 GB in 16 bits are for eight H100; 32 GB hold 6 bits and 24 GB hold 4."""
    found = {one.platform: (one.program, one.format) for one in compared.offers}
    assert found == {
        "dgx-h100": ("vllm", ""),
        "rtx-5090-workstation": ("llama.cpp", "q6_k"),
        "rtx-4090-desktop": ("llama.cpp", "q4_k_m"),
    }
    assert [one.platform for one in compared.offers] == ["dgx-h100", *reversed(NAMES[:2])]
    assert all(one.quality for one in compared.offers if one.format)


def test_the_work_is_the_same_on_all(compared: Machines) -> None:
    for one in compared.offers:
        assert one.result is not None
        assert one.result.replicas * one.result.workload["batch_size"] == 1


def test_an_offer_is_what_the_question_gives(compared: Machines) -> None:
    offer = next(one for one in compared.offers if one.platform == "rtx-4090-desktop")
    alone = question("qwen3-32b", "rtx-4090-desktop", overrides=["model.quantization=q4_k_m"])
    assert simulate(alone).metrics()[SPEED] == offer.value(SPEED)


def test_a_budget_leaves_out_what_costs_more_or_has_no_price() -> None:
    found = compare_machines("qwen3-8b", ("rtx-4090-desktop", "dgx-h100", "gh200"), budget=6000)
    assert [one.platform for one in found.offers] == ["rtx-4090-desktop"]
    assert (found.dearer, found.unpriced) == (1, ("gh200",))
    assert all(one.price is not None and one.price <= 6000 for one in found.offers)


def test_an_unknown_platform_is_an_error() -> None:
    with pytest.raises(InputError, match="there is no platform"):
        compare_machines("qwen3-8b", ("nope",))


def test_on_the_command_line(program: Program) -> None:
    words = ("compare", "qwen3-32b", "--platforms", ",".join(NAMES[:2]))
    data = json.loads(program(*words, "--json").out)
    assert data["schema"] == "simoffload/machines/1"
    assert data["ranking"] == [one["platform"] for one in data["machines"]]
    text = " ".join(program(*words).out.split())
    assert f"Verdict: {data['ranking'][0]} is fastest: " in text
    assert "rtx-4090-desktop llama.cpp q4_k_m" in text
    assert "batch 1 in all" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ddn/bloom-7b1", "--platforms", "dgx-spark"), "name one MODEL"),
        (("qwen3-8b", "qwen3-32b", "--platforms", "dgx-spark"), "name one MODEL"),
        (("qwen3-8b", "--platforms", "dgx-spark", "--on", "dram"), "leave out --on"),
        (("qwen3-8b", "--budget", "+500"), "leave out the plus"),
        (("qwen3-8b", "--budget", "much"), "is not an amount above 0"),
        (("qwen3-8b", "--platforms", "nope"), 'there is no platform "nope"'),
    ],
)
def test_refusals(program: Program, words: tuple[str, ...], message: str) -> None:
    answer = program("compare", *words)
    assert (answer.status, message in answer.err) == (2, True), answer.err
