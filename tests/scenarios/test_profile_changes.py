"""A scenario changes numbers of profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload.errors import InputError
from simoffload.planning.explanation import sensitivity
from simoffload.planning.targets import on_targets
from simoffload.scenario import ScenarioCache, read_scenario, resolve
from simoffload.simulation import simulate

SCENARIO = "ddn/bloom-176b"


def test_a_number_takes_the_place_of_the_profiles_and_says_so() -> None:
    scenario = read_scenario(SCENARIO, overrides=["profiles.ddn-ai400x2.read=45 GB/s"])
    assert scenario.machine.targets["ai400x2"].read.rate == 45_000_000_000
    (changed,) = (one for one in scenario.machine.inputs() if one.source.startswith("set by the scenario"))
    assert (changed.profile, changed.key, changed.text, changed.origin) == (
        "ddn-ai400x2",
        "read",
        "45 GB/s",
        "estimate",
    )
    assert changed.source == "set by the scenario; the profile says 90 GB/s"


def test_its_own_origin_counts() -> None:
    change = "profiles.ddn-ai400x2.read={value: 45 GB/s, origin: measured, source: fio, date: 2026-11-21}"
    scenario = read_scenario(SCENARIO, overrides=[change])
    (changed,) = (one for one in scenario.machine.inputs() if one.source == "fio")
    assert (changed.text, changed.origin, changed.date) == ("45 GB/s", "measured", "2026-11-21")


def test_a_shared_profile_changes_wherever_it_is_used() -> None:
    before = read_scenario(SCENARIO).machine
    after = read_scenario(SCENARIO, overrides=["profiles.pcie/gen4.both_ways=1"]).machine
    shared = [one.name for one in before.resources if "<->" in one.name]
    assert shared
    assert [one.name for one in after.resources if "<->" in one.name] == []


def test_plain_numbers_change_too() -> None:
    scenario = read_scenario(SCENARIO, overrides=['profiles."raid0-4x-pm1733-3.84tb".count=8'])
    assert scenario.machine.targets["raid"].drives == 8


@pytest.mark.parametrize("name", ["raid0-4x-pm1733-3.84tb", "raid/raid0-4x-pm1733-3.84tb"])
def test_a_name_with_a_dot_and_no_quotes_is_told_with_them(name: str) -> None:
    with pytest.raises(InputError) as caught:
        read_scenario(SCENARIO, overrides=[f"profiles.{name}.count=3"])
    (problem,) = caught.value.problems
    assert problem.message == f'a profile name that contains a dot needs quotes: profiles."{name}".count'


def test_memory_that_cannot_be_is_warned_of() -> None:
    host = "profiles.dgx-a100-1tib.memory_capacity"
    (rendered,) = read_scenario(SCENARIO, overrides=[f"{host}=4 TiB"]).warnings
    assert "memory_capacity 4 TiB is more than its board supports, memory_maximum 2 TiB" in rendered
    (rendered,) = read_scenario(SCENARIO, overrides=[f"{host}=960 GB"]).warnings
    assert "memory_capacity 960 GB is in powers of ten" in rendered
    assert read_scenario(SCENARIO).warnings == ()


def test_without_changes_nothing_changes() -> None:
    cache = ScenarioCache()
    plain = read_scenario(SCENARIO)
    changed = resolve(plain.document, overrides=["profiles.hdr200.achieved=1 GB/s"], cache=cache)
    again = resolve(plain.document, cache=cache)
    assert changed.machine.resources != plain.machine.resources
    assert again.machine.resources == plain.machine.resources
    assert again.machine.inputs() == plain.machine.inputs()
    assert [use.id for use in again.machine.profiles] == [use.id for use in plain.machine.profiles]


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        ("hdr201.achieved=1 GB/s", "profiles.hdr201", 'did you mean "hdr200"?'),
        ("hdr200.achived=1 GB/s", "profiles.hdr200.achived", 'did you mean "achieved"?'),
        ("hdr200.achieved=0", "profiles.hdr200.achieved", '"0" has no unit'),
        ("hdr200.achieved=5 GB", "profiles.hdr200.achieved", '"5 GB" is a size, not a rate'),
        ("hdr200.pcie.profile=gen5", "profiles.hdr200.pcie.profile", "is not a number; only numbers can be"),
        ("hdr200.pcie=3", "profiles.hdr200.pcie", "contains several numbers; name one of profile, lanes"),
        ("gen4.copy_lanes=many", "profiles.gen4.copy_lanes", "must be a number"),
        ("gen4.host_to_device=3 GB/s", "profiles.gen4.host_to_device", "is a curve; write {points:"),
        ("dgx-a100.gpus=3", "profiles.dgx-a100", "is the platform itself"),
        ("dgx-a100.switches.plx0.lanes=3", "profiles.dgx-a100", "only rates that switches state"),
        (
            "dgx-a100.switches.plx0.host_to_device=3 GB/s",
            "profiles.dgx-a100",
            "only rates that switches state",
        ),
        ("gen4=3", "profiles.gen4", "must be a mapping, got 3"),
    ],
)
def test_slips_are_placed_in_the_scenario(change: str, key: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_scenario(SCENARIO, overrides=[f"profiles.{change}"])
    (problem,) = caught.value.problems
    assert (problem.path, problem.key) == ("--set", key)
    assert message in problem.message


def test_the_rate_of_a_switch_changes_and_counts_in_the_sensitivity() -> None:
    given = [
        "platform=h200-8gpu-vm",
        "model=opt-6.7b",
        "strategy.ranks=4",
        "strategy.weights=dram",
        "workload.output_length=2",
    ]
    key = "switches.socket0.host_to_device"
    half = f'profiles."platform/h200-8gpu-vm".{key}=50 GB/s'
    before, after = (simulate(read_scenario(SCENARIO, overrides=[*given, *more])) for more in ([], [half]))
    assert after.compared_s > 1.2 * before.compared_s
    rows = {row.number.key: row for row in sensitivity(read_scenario(SCENARIO, overrides=given)).rows}
    assert rows[key].elasticity < -0.2
    assert rows[key].number.profile == "platform/h200-8gpu-vm"


def test_slips_in_a_file_have_their_line(tmp_path: Path) -> None:
    text = "name: x\nmodel: bloom-560m\nplatform: dgx-a100\nprofiles: {hdr200: {achieved: 5 GB}}\n"
    path = tmp_path / "s.yaml"
    path.write_text(text + "workload: {batch_size: 1, prompt_length: 1, output_length: 1}\nstrategy: {}\n")
    with pytest.raises(InputError) as caught:
        read_scenario(path)
    (problem,) = caught.value.problems
    assert (problem.path, problem.line, problem.key) == (str(path), 4, "profiles.hdr200.achieved")


def test_on_another_platform_the_profile_must_be_there_too() -> None:
    scenario = read_scenario(SCENARIO, overrides=["profiles.hdr200.achieved=1 GB/s"])
    with pytest.raises(InputError, match="this platform uses no profile of that name"):
        on_targets(scenario, ["xinnor-workstation:dram"])


def test_a_profile_changes_under_one_name_only() -> None:
    both = 'profiles={"raid/raid0-4x-pm1733-3.84tb": {count: 8}, "raid0-4x-pm1733-3.84tb": {count: 16}}'
    with pytest.raises(InputError, match=r"the same profile as .*merge both"):
        read_scenario(SCENARIO, overrides=[both])
