"""Numbers of profiles: which can decide, how they change, and the scenario with other ones."""

from __future__ import annotations

import pytest

from simoffload.planning.profile_parameters import (
    ProfileParameter,
    deciding_parameters,
    edit_of,
    profile_parameters,
    scaled,
)
from simoffload.scenario import LoadedScenario, read_scenario
from simoffload.simulation import fit


def number(text: str) -> ProfileParameter:
    return ProfileParameter("host/box", "key", text, "estimate", "a guess")


@pytest.mark.parametrize(
    ("text", "factor", "value", "ratio"),
    [
        ("6400 MB/s", 1.1, "7040 MB/s", 1.1),
        ("35.54 us", 0.9, "31.986 us", 0.9),
        ("312 TFLOPS", 0.5, "156 TFLOPS", 0.5),
        ("0.72", 1.1, 0.792, 1.1),
        ("0.96", 1.1, 1.0, 1 / 0.96),
        ("2.4", 0.9, 2.16, 0.9),
        ("1.05", 0.9, 1.0, 1 / 1.05),
        ("8", 1.1, 9, 9 / 8),
        ("8", 0.9, 7, 7 / 8),
    ],
)
def test_a_number_in_the_words_of_a_scenario(text: str, factor: float, value: object, ratio: float) -> None:
    """Shares stay at most 1, multiples at least 1, and whole numbers change by one."""
    found = scaled(number(text), factor)
    assert found is not None
    assert found[0] == value
    assert found[1] == pytest.approx(ratio)


def test_of_a_curve_all_rates_change() -> None:
    found = scaled(number("1 MB: 18 GB/s, 64 MiB: 26 GB/s"), 0.5)
    assert found == ({"points": [["1 MB", "9 GB/s"], ["64 MiB", "13 GB/s"]]}, 0.5)
    found = scaled(number("10 MFLOP: 0.5, 1 GFLOP: 0.96"), 1.1)
    assert found == ({"points": [["10 MFLOP", 0.55], ["1 GFLOP", 1.0]]}, 1.1)


@pytest.mark.parametrize(("text", "factor"), [("1", 0.9), ("1.0", 1.1), ("0 s", 1.1)])
def test_what_cannot_change_does_not(text: str, factor: float) -> None:
    assert scaled(number(text), factor) is None


@pytest.fixture(scope="module")
def bloom() -> LoadedScenario:
    return read_scenario("ddn/bloom-176b")


def test_every_number_of_every_profile_is_there_and_no_wiring(bloom: LoadedScenario) -> None:
    found = list(profile_parameters(bloom.machine))
    # The platform says five things about its wiring, and a slot and GPUDirect Storage are no numbers.
    assert len(found) == len(bloom.machine.inputs()) - 7
    assert ("pfs/ddn-ai400x2", "read", "90 GB/s") in {(one.profile, one.key, one.text) for one in found}


def test_storage_that_is_not_used_decides_nothing(bloom: LoadedScenario) -> None:
    """Nor do adapters without it, capacities, and training in inference."""

    def kinds(scenario: LoadedScenario) -> set[str]:
        found = deciding_parameters(scenario.machine, fit(scenario))
        assert not any(one.key.startswith(("training.", "capacity", "endurance.")) for one in found)
        return {one.profile.partition("/")[0] for one in found}

    always = {"host", "accelerator", "pcie", "unmeasured"}
    assert kinds(bloom) == {*always, "pfs", "nic"}
    assert kinds(bloom.on("raid")) == {*always, "raid", "drive"}
    assert kinds(bloom.on("dram")) == always
    training = read_scenario("training/bloom-7b1")
    used = deciding_parameters(training.machine, fit(training))
    assert any(one.key == "training.gradient" for one in used)


def test_a_change_is_added_to_those_of_the_scenario() -> None:
    scenario = read_scenario("ddn/bloom-176b", overrides=["profiles.ddn-ai400x2.read=45 GB/s"])
    written = edit_of("pfs/ddn-ai400x2", "write", "30 GB/s")
    other = scenario.edited(written, edit_of("host/dgx-a100-1tib", "deepspeed.hook", "1 ms"))
    target = other.machine.targets["ai400x2"]
    assert (target.read.rate, target.write.rate) == (45_000_000_000, 30_000_000_000)
    assert other.machine.host.deepspeed.hook.value == 1e-3
    assert other.machine.host.deepspeed.operation == scenario.machine.host.deepspeed.operation
    assert scenario.document.data["profiles"] == {"ddn-ai400x2": {"read": "45 GB/s"}}
