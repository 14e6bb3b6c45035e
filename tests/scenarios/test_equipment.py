"""Parts that a scenario adds to its platform, on the small machine of round numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload.errors import InputError, Problem
from simoffload.hardware import Machine
from simoffload.planning.targets import on_targets
from simoffload.scenario import LoadedScenario, ScenarioCache, read_scenario, resolve
from tests.hardware.conftest import FILES, LANES, RATES, number

GB = 1_000_000_000
SCENARIO = """\
name: equipped
model: bloom-560m
platform: small.yaml
workload: {batch_size: 1, prompt_length: 8, output_length: 2}
strategy: {ranks: 1, weights: dram}
"""
FAST = (
    FILES["pcie/wire.yaml"]
    .replace("id: wire", "id: fast")
    .replace("8 Gb/s", "16 Gb/s")
    .replace("12 GB/s", "24 GB/s")
)
FOUR = FILES["raid/pair.yaml"].replace("id: pair", "id: four").replace("count: 2", "count: 4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {**FILES, "pcie/fast.yaml": FAST, "raid/four.yaml": FOUR, "s.yaml": SCENARIO}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.lstrip())
    return tmp_path


def loaded(folder: Path, *overrides: str) -> LoadedScenario:
    return read_scenario(folder / "s.yaml", overrides=overrides)


def rates(machine: Machine) -> dict[str, int]:
    return {resource.name: resource.capacity for resource in machine.resources}


def refused(folder: Path, *overrides: str) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        loaded(folder, *overrides)
    return caught.value.problems


# ---- tiers and adapters ----


def test_a_tier_is_added(folder: Path) -> None:
    machine = loaded(folder, "equipment.tiers.big={profile: four, at: [left, right]}").machine
    assert list(machine.tiers) == ["hbm", "dram", "disk", "raid", "nfs", "pfs", "far", "big"]
    assert machine.tiers["big"].capacity == 4_000 * GB
    assert machine.targets["big"].read.rate == 6 * GB
    (access,) = machine.topology.access["big"]
    assert [ingress.vertex for ingress in access.ingresses] == ["left", "right", "left", "right"]


def test_one_of_the_same_name_takes_the_place_of_the_platforms(folder: Path) -> None:
    machine = loaded(folder, "equipment.tiers.raid={profile: four, at: [cpu]}").machine
    assert list(machine.tiers) == ["hbm", "dram", "disk", "raid", "nfs", "pfs", "far"]
    (access,) = machine.topology.access["raid"]
    assert [ingress.vertex for ingress in access.ingresses] == ["cpu"] * 4


def test_a_new_tier_goes_through_a_new_adapter(folder: Path) -> None:
    nic = "equipment.nics.net2={profile: port, at: cpu}"
    machine = loaded(folder, nic, "equipment.tiers.more={profile: stripes, through: [net1, net2]}").machine
    (access,) = machine.topology.access["more"]
    assert [ingress.vertex for ingress in access.ingresses] == ["right", "cpu"]
    assert rates(machine)["net2 in"] == 4 * GB


def test_other_chips_and_another_host_come_into_their_slots(folder: Path) -> None:
    host = FILES["host/box.yaml"].replace("id: box", "id: bigger").replace("100 GB,", "200 GB,")
    (folder / "host" / "bigger.yaml").write_text(host.lstrip())
    machine = loaded(folder, "equipment={accelerator: linked, host: bigger}").machine
    assert (machine.accelerator.id, machine.host.id, machine.gpus) == ("linked", "bigger", 4)
    assert machine.tiers["dram"].capacity == 200 * GB
    assert {"chip", "box"}.isdisjoint(use.id for use in machine.profiles)


def test_what_is_brought_in_is_told_with_its_files(folder: Path) -> None:
    parts = "equipment={accelerator: linked, tiers: {big: {profile: four, at: [left, right]}}}"
    machine = loaded(folder, parts).machine
    assert {"four", "linked"} < {use.id for use in machine.profiles}
    added = [line for line in machine.inputs() if line.source == "equipment of the scenario"]
    assert [(line.profile, line.key, line.text, line.origin) for line in added] == [
        ("small", "accelerator", "linked", "estimate"),
        ("small", "tiers.big", "four at left, right", "estimate"),
    ]
    assert ("four", "read_efficiency", "0.75") in [line[:3] for line in machine.inputs()]


def test_profiles_change_the_numbers_of_what_was_added(folder: Path) -> None:
    tier = "equipment.tiers.big={profile: four, at: [cpu]}"
    machine = loaded(folder, tier, "profiles.four.read_efficiency=0.5").machine
    assert machine.targets["big"].read.rate == 4 * GB
    (problem,) = refused(folder, "profiles.four.read_efficiency=0.5")
    assert problem.message.startswith("this platform uses no profile of that name")


def test_a_reference_may_be_a_path_from_the_scenarios_folder(folder: Path) -> None:
    inner = folder / "study"
    inner.mkdir()
    (inner / "mine.yaml").write_text(FILES["drive/disk.yaml"].lstrip().replace("id: disk", "id: mine"))
    machine = loaded(folder, "equipment.tiers.mine={profile: study/mine.yaml, at: [cpu]}").machine
    assert machine.tiers["mine"].device == "mine"
    (problem,) = refused(folder, "equipment.tiers.mine={profile: ../mine.yaml, at: [cpu]}")
    assert problem.key == "equipment.tiers.mine.profile"
    assert "outside the folder from which files may be read" in problem.message


# ---- another generation of PCIe ----


def test_another_generation_is_in_every_slot_and_what_is_in_them_stays(folder: Path) -> None:
    before, after = loaded(folder).machine, loaded(folder, "equipment.pcie.wire=fast").machine
    old, new = rates(before), rates(after)
    assert (old["cpu -> left"], new["cpu -> left"]) == (12 * GB, 24 * GB)
    assert old["left -> gpu0"] == new["left -> gpu0"] == 12 * GB
    assert old["raid.0 -> left"] == new["raid.0 -> left"] == 2 * GB
    assert old["raid read"] == new["raid read"] == 3 * GB


def test_rates_that_a_switch_states_stay_and_this_is_told(folder: Path) -> None:
    file = folder / "small.yaml"
    file.write_text(file.read_text().replace(LANES, RATES))
    fast = folder / "pcie" / "fast.yaml"
    fast.write_text(fast.read_text().replace(f"both_ways: {number(0.75)}", f"both_ways: {number(0.5)}"))
    scenario = loaded(folder, "equipment.pcie.wire=fast")
    assert (rates(scenario.machine)["cpu -> left"], rates(scenario.machine)["cpu -> right"]) == (
        9 * GB,
        24 * GB,
    )
    assert rates(scenario.machine)["cpu <-> left"] == 0.75 * (9 + 6) * GB
    assert rates(scenario.machine)["cpu <-> right"] == 0.5 * (24 + 8) * GB
    (told,) = [one for one in scenario.link_warnings(scenario.plan()) if "keep the rates" in one]
    assert told.endswith("equipment.pcie.wire: left of small keep the rates that the platform states")


def test_devices_of_the_new_generation_need_its_slots(folder: Path) -> None:
    """A chip and drives of the faster generation: as fast as their slots, then as they are."""
    for name in ("accelerator/chip.yaml", "drive/disk.yaml"):
        (folder / name).write_text((folder / name).read_text().replace("profile: wire", "profile: fast"))
    slow, fast = (rates(loaded(folder, f"equipment.pcie.wire={one}").machine) for one in ("wire", "fast"))
    assert (slow["left -> gpu0"], fast["left -> gpu0"]) == (12 * GB, 24 * GB)
    assert (slow["raid.0 -> left"], fast["raid.0 -> left"]) == (2 * GB, 4 * GB)


def test_a_new_drive_in_an_old_slot_works_at_the_slots_rate_and_is_told() -> None:
    """Four drives of PCIe 5 behind the switches of a DGX A100."""
    tier = "equipment.tiers.raid={profile: raid0-4x-ps1010-7.68tb, at: [plx0, plx1, plx2, plx3]}"
    scenario = read_scenario("ddn/bloom-7b1", overrides=[tier, "strategy.weights=raid"])
    assert rates(scenario.machine)["raid.0 -> plx0"] == 7_522_344_000  # 4 lanes of PCIe 4
    (rendered,) = scenario.link_warnings(scenario.plan())
    assert rendered == (
        "raid: solidigm-ps1010-7.68tb reads 14.5 GB/s, more than the 7.52 GB/s of its slot at plx0 (PCI "
        "Express 4.0 x4), which limits it; use a slot with PCI Express 5.0, which the drive supports"
    )
    elsewhere = scenario.on("dram")
    assert elsewhere.link_warnings(elsewhere.plan()) == ()


def test_where_a_generation_does_nothing_for_the_gpus_is_told_at_its_key(folder: Path) -> None:
    (folder / "s.yaml").write_text(f"{SCENARIO}equipment:\n  pcie: {{wire: fast}}\n")
    scenario = loaded(folder)
    (rendered,) = scenario.link_warnings(scenario.plan())
    assert rendered.startswith(
        f"{folder}/s.yaml:7:16: equipment.pcie.wire: chip has A cable of 1 GB/s per lane x16"
    )
    same = loaded(folder, "equipment.pcie.wire=wire")
    assert same.link_warnings(same.plan()) == ()


def test_numbers_of_the_new_generation_can_be_changed(folder: Path) -> None:
    machine = loaded(folder, "equipment.pcie.wire=fast", "profiles.fast.both_ways=1").machine
    assert not [name for name in rates(machine) if name.startswith("cpu <->")]


# ---- how many drives an array has ----


@pytest.mark.parametrize(
    ("count", "vertices"),
    [
        (1, ["left"]),  # a slot stays empty
        (2, ["left", "right"]),
        (5, ["left", "right", "left", "right", "left"]),
    ],
)
def test_drives_of_an_array_by_number(folder: Path, count: int, vertices: list[str]) -> None:
    machine = loaded(folder, f"profiles.pair.count={count}").machine
    target = machine.targets["raid"]
    assert machine.tiers["raid"].capacity == count * 1_000 * GB
    assert (target.drives, target.read.rate, target.write.rate) == (count, count * 1.5 * GB, count * 0.5 * GB)
    (access,) = machine.topology.access["raid"]
    assert [ingress.vertex for ingress in access.ingresses] == vertices
    assert [ingress.share for ingress in access.ingresses] == [pytest.approx(1 / count)] * count


# ---- slips ----


@pytest.mark.parametrize(
    ("parts", "key", "message"),
    [
        ("tiers.big={profile: fuor, at: [cpu]}", "tiers.big.profile", 'did you mean "four"?'),
        ("tiers.big={profile: four, at: [lfet]}", "tiers.big.at[0]", 'no vertex "lfet" (has: cpu, left, rig'),
        ("tiers.big={profile: four}", "tiers.big", "give either `at` (local drives) or `through`"),
        (
            "tiers.big={profile: four, at: [cpu], to: x}",
            "tiers.big.to",
            "(known here: profile, at, through, link)",
        ),
        ("tiers.big={profile: disk, at: [left, cpu]}", "tiers.big.at", "2 vertices for 1 drive"),
        ("tiers.big={profile: share, at: [cpu]}", "tiers.big.at", "is remote; write `through`"),
        ("tiers.big={profile: share, through: [net9]}", "tiers.big.through[0]", "(has: net0, net1)"),
        ("tiers.big={profile: share, through: [net0, net0]}", "tiers.big.through", 'names "net0" twice'),
        ("tiers.left={profile: four, at: [cpu]}", "tiers.left", '"left" names two things'),
        ("tiers.dram={profile: four, at: [cpu]}", "tiers.dram", '"dram" is reserved'),
        ("nics.net2={profile: prot, at: cpu}", "nics.net2.profile", 'did you mean "port"?'),
        ("nics.net2={profile: port, at: cup}", "nics.net2.at", 'did you mean "cpu"?'),
        ("nics.gpu3={profile: port, at: cpu}", "nics.gpu3", '"gpu3" names two things'),
        ("accelerator=chop", "accelerator", 'there is no accelerator "chop"; did you mean "chip"?'),
        ("host=four", "host", 'there is no host "four"'),
        ("pcie.wire=fsat", "pcie.wire", 'there is no pcie "fsat"; did you mean "fast"?'),
        ("pcie.gen9=fast", "pcie.gen9", "no slot of this platform has that PCIe generation (has: wire)"),
        (
            "hosts.more={to: cpu}",
            "hosts",
            'unknown key; did you mean "host"? (known here: host, accelerator,',
        ),
        ("tiers=raid", "tiers", 'must be a mapping, got "raid"'),
    ],
)
def test_slips_are_placed_in_the_scenario(folder: Path, parts: str, key: str, message: str) -> None:
    (problem,) = refused(folder, f"equipment.{parts}")
    assert (problem.path, problem.key) == ("--set", f"equipment.{key}")
    assert message in problem.message


def test_slips_in_a_file_have_their_line(folder: Path) -> None:
    more = "equipment:\n  tiers:\n    big: {profile: four, at: [lfet]}\n"
    (folder / "s.yaml").write_text(SCENARIO + more)
    (problem,) = refused(folder)
    assert (problem.path, problem.line, problem.column) == (str(folder / "s.yaml"), 8, 31)


def test_chips_without_links_do_not_go_where_the_platform_has_them(folder: Path) -> None:
    text = (folder / "small.yaml").read_text()
    linked = text.replace("accelerator: chip", "accelerator: linked").replace(": none", ": switched")
    (folder / "small.yaml").write_text(linked)
    (problem,) = refused(folder, "equipment.accelerator=chip")
    assert problem.key == "equipment.accelerator"
    assert problem.message == "chip has no links to other GPUs, which small requires; choose one that has"


# ---- elsewhere, and again ----


def test_it_is_installed_in_another_platform_too(folder: Path) -> None:
    scenario = loaded(folder, "equipment.tiers.big={profile: four, at: [cpu]}")
    (moved,) = on_targets(scenario, ["dgx-a100:big"]).values()
    assert moved.machine.platform == "dgx-a100"
    assert moved.machine.targets["big"].read.rate == 6 * GB


def test_what_does_not_fit_another_platform_is_told_in_the_scenario(folder: Path) -> None:
    scenario = loaded(folder, "equipment.tiers.big={profile: four, at: [left]}")
    with pytest.raises(InputError) as caught:
        on_targets(scenario, ["dgx-a100:big"])
    (problem,) = caught.value.problems
    assert problem.key == "equipment.tiers.big.at[0]"
    assert 'no vertex "left" (has: cpu, plx0, plx1, plx2, plx3)' in problem.message


def test_scenarios_on_one_shelf_have_their_own_machines(folder: Path) -> None:
    cache, plain = ScenarioCache(), loaded(folder)
    equipped = resolve(plain.document, overrides=["equipment.pcie.wire=fast"], cache=cache)
    again = resolve(plain.document, cache=cache)
    assert rates(equipped.machine) != rates(plain.machine)
    assert rates(again.machine) == rates(plain.machine)
    assert again.machine.inputs() == plain.machine.inputs()
