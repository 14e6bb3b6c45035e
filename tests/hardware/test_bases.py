"""Profiles based on others, and platforms by their parts: only what differs is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from simoffload.errors import InputError
from simoffload.hardware import Drive, Host, Library, Platform, PlatformProfile, load_platform
from tests.examples import EXPLORES

SIX_LINES = """\
id: my-box
gpu: rtx-4090
gpus: 2
memory: 128 GB
drives: [2x samsung-990-pro-2tb]
network: 10 Gb/s
"""


def written(folder: Path, text: str, name: str = "box") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def platform(folder: Path, text: str) -> Platform:
    return load_platform(written(folder, text))


def problem(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        Library(folder).read(written(folder, text), ("host", "platform", "drive"))
    (one,) = caught.value.problems
    return f"{Path(one.path).name}:{one.line}: {one.key}: {one.message}"


# -- base ------------------------------------------------------------------------------------------


def test_a_host_takes_everything_that_it_does_not_write(tmp_path: Path) -> None:
    text = (
        "kind: host\nid: mine\nbase: desktop-ddr4-64gb\nmemory_capacity: 96 GiB\ncpu_optimizer: {cores: 12}\n"
    )
    entry = Library(tmp_path).read(written(tmp_path, text), ("host",))
    base = Library().find("desktop-ddr4-64gb", ("host",)).profile
    host = entry.profile
    assert isinstance(host, Host)
    assert isinstance(base, Host)
    assert (host.id, host.memory_capacity.value, host.cpu_optimizer.cores.value) == ("mine", 96 * 2**30, 12)
    assert host.deepspeed == base.deepspeed
    assert host.memory_capacity.origin == "estimate"
    assert host.memory_capacity.source == "stated for this machine; desktop-ddr4-64gb has 64 GiB"


def test_what_was_measured_on_the_base_is_an_estimate_here(tmp_path: Path) -> None:
    text = "kind: host\nid: mine\nbase: i5-14600k-96gb\n"
    base = Library().find("i5-14600k-96gb", ("host",)).profile
    mine = Library(tmp_path).read(written(tmp_path, text), ("host",)).profile
    assert isinstance(base, Host)
    assert isinstance(mine, Host)
    assert base.cpu_optimizer.thread.origin == "measured"
    assert mine.cpu_optimizer.thread.origin == "estimate"
    assert mine.cpu_optimizer.thread.measured_on == "i5-14600k-96gb"
    assert mine.memory_bandwidth == base.memory_bandwidth  # of a data sheet
    assert "measured" not in {one.origin for one in Library(tmp_path).find("box.yaml", ("host",)).inputs()}


def test_a_chain_of_bases(tmp_path: Path) -> None:
    written(tmp_path, "id: one\nkind: drive\nbase: samsung-980-pro-2tb\ncapacity: 1 TB\n", "one")
    drive = Library(tmp_path).read(
        written(tmp_path, "id: two\nkind: drive\nbase: one.yaml\nread: 6000 MB/s\nwrite_cache: null\n"),
        ("drive",),
    )
    assert isinstance(drive.profile, Drive)
    assert (drive.profile.capacity.value, drive.profile.read.value) == (10**12, 6 * 10**9)
    assert drive.profile.write_cache is None
    assert drive.profile.write.value == 5100 * 10**6


def test_a_change_of_the_base_changes_the_digest(tmp_path: Path) -> None:
    text = "id: two\nkind: drive\nbase: one.yaml\n"
    digests = set()
    for capacity in (1, 2):
        base = f"id: one\nkind: drive\nbase: samsung-980-pro-2tb\ncapacity: {capacity} TB\n"
        written(tmp_path, base, "one")
        digests.add(Library(tmp_path).read(written(tmp_path, text), ("drive",)).use.sha256)
    assert len(digests) == 2


def test_a_file_that_replaces_a_shipped_profile_may_be_based_on_it(tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    name = "samsung-980-pro-2tb"
    written(tmp_path / "drive", f"id: {name}\nkind: drive\nbase: {name}\nread: 6000 MB/s\n", name)
    drive = Library(tmp_path).find(name, ("drive",)).profile
    assert isinstance(drive, Drive)
    assert drive.read.value == 6 * 10**9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: host\nid: a\nbase: box.yaml\n", "box.yaml:3: base: is based on itself: box"),
        (
            "kind: platform\nid: a\nbase: dgx-a10\n",
            'there is no platform "dgx-a10"; did you mean "dgx-a100"?',
        ),
        ("kind: host\nid: a\nbase: [x]\n", "box.yaml:3: base: must be the id or the file of a profile"),
        (
            "kind: host\nid: a\nbase: dgx2-1.5tb\ncpuu: x\n",
            'box.yaml:4: cpuu: unknown key; did you mean "cpu"?',
        ),
        ("kind: host\nid: a\nbase: dgx2-1.5tb\neager: null\n", "box.yaml:4: eager: is empty, which leaves"),
        ("kind: host\nid: a\nbase: dgx2-1.5tb\nreserved: 4 Gb\n", "box.yaml:4: reserved"),
        ("id: a\nmemory: 64 GB\n", "name the GPU (gpu: rtx-4090), or a platform"),
        ("id: a\ngpu: rtx-4099\n", 'box.yaml:2: gpu: there is no accelerator "rtx-4099"; did you mean'),
        ("id: a\ngpu: rtx-4090\nmemory: much\n", "box.yaml:3: memory: "),
        ("id: a\ngpu: rtx-4090\ngpus: 0\n", "box.yaml:3: gpus: must be at least 1, got 0"),
        (
            "id: a\ngpu: rtx-4090\ndrives: [2x samsung-98]\n",
            'box.yaml:3: drives: there is no drive "samsung-98"',
        ),
        ("id: a\ngpu: rtx-4090\ndrives: [raid5 2x samsung-980-pro-2tb]\n", "RAID5 needs at least 3 drives"),
        (
            "id: a\ngpu: rtx-4090\ndrives: [nfs-10gbe]\n",
            "nfs-10gbe is not in the machine; write it into tiers",
        ),
        (
            "id: a\ngpu: rtx-4090\nnetwork: 3 Gb/s\n",
            "box.yaml:3: network: there is no network adapter of 3 Gb/s",
        ),
    ],
)
def test_mistakes_are_one_message_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    assert message in problem(tmp_path, text)


def test_a_gpu_that_no_shipped_platform_has_needs_a_base(tmp_path: Path) -> None:
    (tmp_path / "chip.yaml").write_text("kind: accelerator\nid: chip\nbase: b200-sxm\nname: A chip\n")
    message = problem(tmp_path, "id: a\ngpu: chip.yaml\n")
    assert "box.yaml:2: gpu: no shipped platform has a chip" in message


def test_a_cycle_names_its_files(tmp_path: Path) -> None:
    written(tmp_path, "kind: host\nid: one\nbase: box.yaml\n", "one")
    assert "is based on itself: box → one" in problem(tmp_path, "kind: host\nid: box\nbase: one.yaml\n")


EVERY = 1 if EXPLORES else 3
WRONG = (None, True, "", "x", "5 GB/s", 0, 7, -1, 2.5, 1e300, [], ["x"], [[1]], {}, {"x": 1}, {"value": None})


@pytest.mark.parametrize("based", [False, True])
def test_no_value_of_a_wrong_kind_breaks_a_short_form(tmp_path: Path, *, based: bool) -> None:
    whole = yaml.safe_load(SIX_LINES) | ({"base": "rtx-4090-2gpu"} if based else {})
    keys = {*whole, *PlatformProfile.model_fields, "base"}
    refused = 0
    for number, key in enumerate(sorted(keys)):
        for value in WRONG[number % EVERY :: EVERY]:
            path = written(tmp_path, json.dumps({**whole, key: value}))
            try:
                load_platform(path)
            except InputError:
                refused += 1
    assert refused > len(keys) * 10 // EVERY


# -- parts -----------------------------------------------------------------------------------------


def test_a_platform_in_six_lines(tmp_path: Path) -> None:
    found = platform(tmp_path, SIX_LINES)
    assert found.profile.gpus == ("slot0", "slot1")  # as the shipped desktop with two of these cards
    assert found.host.memory_capacity.value == 128 * 2**30
    assert found.targets["raid"].drives == 2
    assert list(found.nics) == list(found.profile.network) == ["eth0"]
    assert set(found.profile.tiers) == {"raid"}
    assert {one.origin for one in found.profile.wiring} == {"estimate"}
    assert not [one for one in found.inputs if one.profile == "my-box" and one.origin == "measured"]
    assert found.machine(nodes=2).gpus == 4


def test_more_gpus_than_any_shipped_platform_has(tmp_path: Path) -> None:
    found = platform(tmp_path, "id: a\ngpu: RTX 4090\ngpus: 4\n")
    assert found.profile.gpus == ("cpu",) * 4
    assert set(found.profile.tiers) == {"nvme"}
    assert "all its lanes at the CPU" in found.profile.wiring[0].about


def test_drives_are_those_of_the_nearest_platform_unless_they_are_named(tmp_path: Path) -> None:
    """Without a drive a mapped file cannot be read again: what is not said is not "none"."""
    text = "id: a\ngpu: rtx-4080\nmemory: 64 GB\n"
    base, found = load_platform("rtx-4080-desktop"), platform(tmp_path, text)
    assert found.targets["nvme"] == base.targets["nvme"]
    assert not found.nics
    assert "no network; everything else as rtx-4080-desktop" in found.profile.wiring[0].about
    assert not platform(tmp_path, f"{text}drives: []\n").profile.tiers
    other = platform(tmp_path, f"{text}drives: [samsung-980-pro-2tb]\n")
    assert other.profile.tiers["nvme"].profile == "samsung-980-pro-2tb"


def test_parts_of_a_stated_base(tmp_path: Path) -> None:
    text = "id: a\nbase: rtx-4090-desktop\nmemory: 64 GB\n"
    found = platform(tmp_path, text)
    assert set(found.profile.tiers) == {"nvme", "nfs"}
    assert found.host.memory_capacity.value == 64 * 2**30
    drives = "drives: [samsung-990-pro-2tb, raid5 3x micron-7450-pro-7.68tb]\n"
    fewer = platform(tmp_path, f"{text}{drives}network: 2x 25 Gb/s, 10 GbE\n")
    assert set(fewer.profile.tiers) == {"nvme", "raid"}
    assert [one.profile for one in fewer.profile.nics.values()] == ["25gbe", "25gbe", "10gbe"]
    assert fewer.profile.network == ("eth0", "eth1")


def test_what_a_platform_writes_of_its_profiles(tmp_path: Path) -> None:
    text = (
        "id: a\nbase: rtx-4090-desktop\nkind: platform\nprofiles:\n  host/desktop-ddr5-128gb: {cpu: My CPU}\n"
    )
    assert platform(tmp_path, text).host.cpu == "My CPU"
    with pytest.raises(InputError, match="this platform uses no profile of that name"):
        platform(tmp_path, text.replace("ddr5-128gb", "ddr9"))


def test_other_keys_of_a_platform_go_with_parts(tmp_path: Path) -> None:
    more = "setting: rack\ntiers: {raid: {at: [cpu]}, nfs: {profile: nfs-10gbe, through: [eth0]}}\n"
    found = platform(tmp_path, SIX_LINES + more)
    assert found.profile.setting == "rack"
    assert set(found.profile.tiers) == {"raid", "nfs"}


def test_an_array_of_any_drive_needs_no_file() -> None:
    entry = Library().find("raid6-5x-samsung-pm1733-3.84tb", ("raid",))
    assert "measured" not in {one.origin for one in entry.inputs()}
    assert "RAID6 of 5" in entry.profile.name
