"""Which machine: each with its best program, a format that fits, and the same work."""

from __future__ import annotations

import json
from math import inf

import pytest

from simoffload.errors import InputError, WorkLimitError
from simoffload.extensions.purchases.machines import SPEED, Machines, compare_machines
from simoffload.limits import time_left
from simoffload.planning.question import question
from simoffload.results import SimulationResult
from simoffload.scenario import LoadedScenario, canonical
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
        "dgx-h100": ("vLLM", ""),
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
        (
            ("qwen3-8b", "--platforms", "dgx-spark", "--objective", "ttft", "--baseline", "x"),
            "leave out --baseline, --objective",
        ),
        (
            ("qwen3-8b", "--platforms", "dgx-spark,gh200", "--set", "workload.batch_size=abc"),
            'error: --set: workload.batch_size: must be a whole number, got "abc"',
        ),
        (("qwen3-8b", "--platforms", "dgx-spark", "--context", "100"), "--context: 100 tokens have no room"),
        (("qwen3-8b", "--budget", "+500"), "leave out the plus"),
        (("qwen3-8b", "--budget", "much"), "is not an amount above 0"),
        (("qwen3-8b", "--platforms", "nope"), 'there is no platform "nope"'),
    ],
)
def test_refusals(program: Program, words: tuple[str, ...], message: str) -> None:
    answer = program("compare", *words)
    assert (answer.status, message in answer.err) == (2, True), answer.err


def test_the_batch_counts_however_it_is_stated(program: Program) -> None:
    words = ("compare", "qwen3-8b", "--platforms", "rtx-4090-desktop", "--json", "--set")
    alone = program(*words, "workload.batch_size=8").out
    whole = "workload={kind: inference, batch_size: 8, prompt_length: 2048, output_length: 512}"
    metrics = [json.loads(one)["machines"][0]["metrics"] for one in (alone, program(*words, whole).out)]
    assert metrics[0] == metrics[1]
    assert metrics[0] != json.loads(program(*words, "workload.batch_size=1").out)["machines"][0]["metrics"]


def test_the_context_counts(program: Program) -> None:
    """The cache of 40,000 tokens has no room beside 16-bit weights where vLLM leaves memory free."""
    words = ("compare", "qwen3-8b", "--platforms", "rtx-4090-desktop", "--json")
    usual, long = (json.loads(program(*words, *more).out) for more in ((), ("--context", "40000")))
    assert [one["machines"][0]["program"] for one in (usual, long)] == ["vLLM", "llama.cpp"]


def test_each_scenario_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = list[str]()

    def counted(scenario: LoadedScenario) -> SimulationResult:
        documents.append(canonical(scenario.document.data))
        return simulate(scenario)

    monkeypatch.setattr("simoffload.extensions.purchases.machines.simulate", counted)
    compare_machines("qwen3-32b", ("rtx-4090-desktop",))
    assert len(documents) > 1
    assert len(set(documents)) == len(documents)


def test_what_was_stopped_is_not_known(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> SimulationResult:
        raise WorkLimitError("stopped after 2 s")

    monkeypatch.setattr("simoffload.extensions.purchases.machines.simulate", stopped)
    done = program("compare", "qwen3-8b", "--platforms", "dgx-spark")
    assert done.status == 1
    assert "not known which machine runs qwen3-8b: stopped after 2 s" in " ".join(done.out.split())


def test_machines_share_the_time(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    left = list[float]()

    def machines(*_: object, **__: object) -> Machines:
        left.append(time_left())
        return Machines("qwen3-8b", (), "USD")

    monkeypatch.setattr("simoffload.extensions.purchases.machines.compare_machines", machines)
    for limit in ((), ("--timeout", "50s")):
        program("compare", "qwen3-8b", "--platforms", "dgx-spark", *limit)
    assert left[0] == inf
    assert 40 < left[1] <= 50
