"""Offers of storage that memory of the machine makes needless: one line, and the rows on request."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import simoffload as so
from simoffload.planning import compare as module
from simoffload.report.from_comparison import comparison_document
from simoffload.report.html import html_text
from simoffload.report.markdown import markdown
from simoffload.report.terminal import terminal_text
from simoffload.results import ADDED
from simoffload.units import format_number

OFFERS = ["raid0", "nfs-100gbe", "lustre"]


@pytest.fixture(scope="module")
def compared() -> so.Comparison:
    return so.compare("storage/llama-3.1-405b", OFFERS)


def test_host_memory_holds_what_is_compared_on_storage_and_fewer_bits_fit_the_gpus(
    compared: so.Comparison,
) -> None:
    """812 GB in the 2 TiB of the host, over 6 times as fast as the fastest offer; fp8 in eight GPUs."""
    dram, fp8 = compared.nearer
    assert (dram.label, dram.fastest, dram.change.same_work) == ("dram", "raid0", True)
    assert dram.gain > 6
    assert dram.result.compared_s == so.compare("storage/llama-3.1-405b", ["dram"]).results["dram"].compared_s
    (host,) = (use for use in dram.result.capacity if use.tier == "dram")
    assert 812e9 < host.needed < host.capacity == 2 * 2**40
    assert (fp8.label, fp8.change.same_work) == ("vllm-fp8", False)
    assert all(use.fits for use in fp8.result.capacity)
    assert fp8.gain > dram.gain


def test_it_is_one_line_in_text_report_and_json(compared: so.Comparison) -> None:
    (note,) = compared.notes
    assert note.startswith("memory that the machine has would do, without storage: host memory would hold ")
    assert "GiB of 2 TiB per host (dram), " in note
    assert note.endswith("but check the quality of its answers first")
    document = comparison_document(tuple(compared.results.values()), notes=compared.notes)
    assert note[1:60] in terminal_text(document, width=1000)
    assert note in json.dumps(document.to_dict())
    plain = json.loads(json.dumps(compared.to_dict()))["nearer"]
    assert [one["label"] for one in plain] == ["dram", "vllm-fp8"]
    assert plain[0]["gain"] == compared.nearer[0].gain
    assert list(compared.results) == OFFERS, "rows only on request"


def test_what_would_be_better_is_a_line_under_the_sentence(compared: so.Comparison) -> None:
    host, fp8 = compared.nearer
    first, second = (format_number(one.gain, digits=2) for one in (host, fp8))
    expected = f"no storage at all: {first} times as fast as raid0 with the weights in host memory, "
    expected += f"{second} times with them in fp8 in the same GPUs (other answers)"
    assert compared.better == expected
    document = comparison_document(tuple(compared.results.values()))._replace(better=compared.better)
    lines = terminal_text(document, width=1000).splitlines()
    assert lines[2] == f"Better: {expected}"
    assert f"Better: {expected}" in " ".join(markdown(document).split())
    assert document.to_dict()["better"] == expected
    verdict, _, rest = html_text(document).partition('<p class="better">')
    assert 'class="verdict"' in verdict
    assert rest.index("in host memory") < rest.index('class="facts"')
    assert so.compare("storage/llama-3.1-405b", ["dram", "raid0"]).better == ""


@pytest.mark.parametrize(
    ("name", "targets", "overrides"),
    [
        ("storage/llama-3.1-405b", ["raid0", "dram"], []),  # memory is among the targets
        ("storage/llama-3.1-405b", ["raid0"], ["nodes=1", "profiles.dgx-h100-2tb.memory_capacity=512 GiB"]),
        ("deepnvme/mixtral-8x22b", ["raid"], []),  # drives read into the GPU are faster than host memory
    ],
)
def test_nothing_is_said_where_nothing_nearer_would_do_as_well(
    name: str, targets: list[str], overrides: list[str]
) -> None:
    found = so.compare(so.load_scenario(name, overrides=overrides), targets)
    assert [one.label for one in found.nearer if one.change.same_work] == []


def test_optimizer_states_of_training_count_too() -> None:
    found = so.compare("training/bloom-7b1", ["raid+raid", "nfs+nfs"])
    (place,) = found.nearer
    assert set(place.result.targets) <= {"hbm", "dram"}
    assert "optimizer states" in found.notes[0]


def test_offers_given_as_scenarios_count_too() -> None:
    offers = so.on_targets(so.load_scenario("storage/llama-3.1-405b"), OFFERS)
    found = so.compare_scenarios({f"offer {label}": one for label, one in offers.items()})
    assert [one.label for one in found.nearer] == ["offer dram", "offer vllm-fp8"]
    drives = [
        so.load_scenario(
            "storage/llama-3.1-405b", overrides=[f'profiles."raid0-4x-ps1010-7.68tb".count={count}']
        )
        for count in (4, 8)
    ]
    found = so.compare_scenarios(dict(zip(("four drives", "eight drives"), drives, strict=True)))
    assert len(found.nearer) == 2, "the same memory whatever the offer"


def test_checkpoints_are_never_kept_in_memory() -> None:
    assert so.compare("checkpoint/mlperf-8b", ["raid", "nfs"]).nearer == ()


def test_the_search_has_one_limit_for_all_places_and_says_if_it_was_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The offers that are finished are kept, and each place is simulated once, with progress."""
    simulated: list[float] = []
    simulate = module.simulate

    def slow(scenario: so.LoadedScenario, **options: Any) -> so.SimulationResult | None:
        if not any(remark.startswith(ADDED) for remark in scenario.remarks):
            return simulate(scenario, **options)
        simulated.append(time.monotonic())
        time.sleep(5)
        return None

    monkeypatch.setattr(module, "simulate", slow)
    offers = so.on_targets(
        so.load_scenario("storage/llama-3.1-405b", overrides=["engine.timeout=1.5 s"]), OFFERS
    )
    found = so.compare_scenarios(offers)
    assert list(found.results) == OFFERS
    assert all(result.compared_s for result in found.results.values())
    assert len(simulated) == 1, "one limit for all offers"
    (note,) = found.notes
    assert note.startswith(
        "whether other memory of the machine would do was not found out: stopped by engine"
    )
    assert found.to_dict()["nearer_stopped"] in note


def test_places_report_progress_and_are_not_rows() -> None:
    told: list[str] = []
    found = so.compare("storage/llama-3.1-405b", ["raid0"], progress=told.append)
    assert "dram" not in found.results
    assert found.nearer
    assert {one.change.description for one in found.nearer} <= {
        part for text in told for part in text.split(": ")
    }
