"""Servers behind several ports, devices in other slots, and warnings of rates above both."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload.hardware import Machine, load_platform
from simoffload.hardware.library import Library
from simoffload.hardware.machine import profile_warnings
from tests.hardware.conftest import FILES, LANES, RATES, number

GB = 10**9
SHIPPED = Path(__file__).parents[2] / "hardware_profiles"
FAST = FILES["pcie/wire.yaml"].replace("id: wire", "id: fast").replace("8 Gb/s", "16 Gb/s")


def edited(folder: Path, name: str, *pairs: tuple[str, str]) -> Machine:
    """The small machine with other text in one of its files."""
    text = (folder / name).read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return load_platform(folder / "small.yaml").machine()


def rates(machine: Machine) -> dict[str, int]:
    return {resource.name: resource.capacity for resource in machine.resources}


# ---- ports of a server ----


@pytest.mark.parametrize(
    ("links", "mounts", "server", "client"),
    [
        (1, 1, 4, 4),  # one port
        (1, 2, 4, 4),  # two mounts over it
        (2, 1, 8, 4),  # one client uses one of two ports
        (2, 2, 8, 8),
        (2, 3, 8, 8),
        (3, 3, 9, 12),  # the server's own 9 GB/s
    ],
)
def test_mounts_are_spread_over_the_ports_of_an_nfs_server(
    folder: Path, links: int, mounts: int, server: int, client: int
) -> None:
    """Ports of 4 GB/s, and 8 connections of 1 GB/s each for a mount."""
    machine = edited(
        folder,
        "nfs/share.yaml",
        ("link: port", f"link: port\nlinks: {links}"),
        (f"mounts: {number(1)}", f"mounts: {number(mounts)}"),
        (f"nconnect: {number(2)}", f"nconnect: {number(8)}"),
        ("3 GB/s", "9 GB/s"),
    )
    assert rates(machine)["nfs read"] == server * GB
    assert rates(machine)["nfs connections in"] == client * GB


def test_few_connections_do_not_fill_two_ports(folder: Path) -> None:
    machine = edited(folder, "nfs/share.yaml", ("link: port", "link: port\nlinks: 2"), ("3 GB/s", "9 GB/s"))
    assert rates(machine)["nfs connections in"] == 2 * GB


def test_a_file_without_links_has_one_port(folder: Path) -> None:
    assert rates(edited(folder, "nfs/share.yaml", ("3 GB/s", "9 GB/s")))["nfs read"] == 4 * GB


def test_a_tier_may_name_another_adapter_of_its_server(folder: Path) -> None:
    port = FILES["nic/port.yaml"].replace("id: port", "id: wide").replace("4 GB/s", "7 GB/s")
    (folder / "nic" / "wide.yaml").write_text(port.lstrip())
    machine = edited(folder, "small.yaml", ("profile: share,", "profile: share, link: wide,"))
    assert rates(machine)["nfs write"] == 5 * GB  # the server's own; 4 over its own port


# ---- slots ----


@pytest.mark.parametrize(("slots", "drive"), [("wire", 2 * GB), ("fast", 4 * GB), (None, 4 * GB)])
def test_a_drive_runs_at_the_slower_generation_of_drive_and_slot(
    folder: Path, slots: str | None, drive: int
) -> None:
    """Drives of the fast generation at the CPU; a host that does not say its slots limits nothing."""
    (folder / "pcie" / "fast.yaml").write_text(FAST.lstrip())
    edited(folder, "drive/disk.yaml", ("profile: wire", "profile: fast"), ("2 GB/s", "5 GB/s"))
    reported = f"slots: {number(slots)}\ncpu_optimizer" if slots else "cpu_optimizer"
    found = rates(edited(folder, "host/box.yaml", ("cpu_optimizer", reported)))
    assert found["disk.0 -> cpu"] == drive
    assert found["raid.0 -> left"] == 2 * GB  # behind a switch of the old one


def test_an_old_device_is_no_faster_in_a_new_slot(folder: Path) -> None:
    (folder / "pcie" / "fast.yaml").write_text(FAST.lstrip())
    old = rates(load_platform(folder / "small.yaml").machine())
    new = rates(edited(folder, "small.yaml", ("pcie: wire", "pcie: fast")))
    for name in ("left -> gpu0", "raid.0 -> left", "net0 in"):
        assert old[name] == new[name]


def test_a_cable_other_than_pcie_has_no_slot() -> None:
    """NVLink-C2C of a GH200, whose CPU has slots of PCIe 5."""
    machine = load_platform("gh200").machine()
    assert machine.topology.gpu_pcie_link.pcie.id == "nvlink-c2c"
    assert rates(machine)["cpu -> gpu0"] == 346 * GB


def test_gpus_in_slots_of_two_generations_copy_at_their_own(folder: Path) -> None:
    fast = FAST.replace("12 GB/s", "24 GB/s")
    (folder / "pcie" / "fast.yaml").write_text(fast.lstrip())
    edited(folder, "accelerator/chip.yaml", ("profile: wire", "profile: fast"))
    machine = edited(folder, "small.yaml", ("left: {to: cpu, pcie: wire", "left: {to: cpu, pcie: fast"))
    ways = [machine.host_to_device(gpu, pinned=True).curve.rate(10**9) for gpu in (0, 2)]
    assert ways == [24 * GB, 12 * GB]


# ---- warnings ----


@pytest.mark.parametrize(
    ("tier", "file", "pairs", "rendered"),
    [
        (
            "nfs",
            "nfs/share.yaml",
            [("5 GB/s", "1 GB/s"), ("3 GB/s", "9 GB/s")],
            "nfs: share reads 9 GB/s, more than the 4 GB/s of 1 port of port of the server, which limits it",
        ),
        (
            "far",
            "nvmeof/far.yaml",
            [("links: 1", "links: 2"), (number(0.5), number(1))],
            None,  # 3 of 8 GB/s
        ),
        (
            "far",
            "raid/pair.yaml",
            [("count: 2", "count: 12")],
            "far: far reads 9 GB/s, more than the 4 GB/s of 1 port of port of the server, which limits it",
        ),
        ("far", "raid/pair.yaml", [("count: 2", "count: 6")], None),  # 4.5 of 4 GB/s: five are too few
        (
            "disk",
            "drive/disk.yaml",
            [("2 GB/s", "3 GB/s")],
            "disk: disk reads 3 GB/s, more than the 2 GB/s of its slot at cpu (A cable of 1 GB/s per lane",
        ),
        (
            "raid",
            "raid/pair.yaml",
            [("count: 2", "count: 12")],
            "raid: the drives behind left read 9 GB/s, more than the 8 GB/s of the cable of left (A cable",
        ),
        (
            "raid",
            "small.yaml",
            [(LANES, RATES.replace("6 GB/s", "0.7 GB/s"))],
            "raid: the drives behind left read 1.5 GB/s, more than the 700 MB/s of the cable of left (as",
        ),
        (
            "pfs",
            "nic/port.yaml",
            [(number(16), number(4))],
            "net0: port carries 4 GB/s, more than the 2 GB/s of its slot (A cable of 1 GB/s per lane x4)",
        ),
        ("nfs", "drive/disk.yaml", [("2 GB/s", "3 GB/s")], None),  # of a tier that is not used
        ("disk", "drive/disk.yaml", [("2 GB/s", "2.05 GB/s")], None),  # what data sheets round
    ],
)
def test_rates_above_the_links_of_tiers_in_use_cause_warnings(
    folder: Path, tier: str, file: str, pairs: list[tuple[str, str]], rendered: str | None
) -> None:
    if file != "nfs/share.yaml":
        edited(folder, "nfs/share.yaml", ("5 GB/s", "1 GB/s"))
    found = edited(folder, file, *pairs).overruns([tier])
    if rendered is None:
        assert found == ()
    else:
        assert found[0].startswith(rendered)
        assert f"which limits {'them' if 'the drives behind' in rendered else 'it'}; " in found[0]


@pytest.mark.parametrize(
    ("to_gpus", "from_gpus", "rendered"),
    [
        ("12 GB/s", "8 GB/s", None),
        ("11.8 GB/s", "8 GB/s", None),  # as after rounding
        ("9 GB/s", "6 GB/s", "9 GB/s, less than the 12 GB/s of the cable of one GPU behind it (A cable of"),
        ("24 Gb/s", "16 GB/s", "3 GB/s, less than the 12 GB/s of"),
        ("24 GB/s", "1 B/s", "1 B/s, less than the 8 GB/s of"),
    ],
)
def test_a_switch_that_is_stated_to_be_slower_than_one_gpu(
    folder: Path, to_gpus: str, from_gpus: str, rendered: str | None
) -> None:
    stated = RATES.replace("9 GB/s", to_gpus).replace("6 GB/s", from_gpus)
    found = edited(folder, "small.yaml", (LANES, stated)).overruns([])
    if rendered is None:
        assert found == ()
        return
    (one,) = found
    key = "device_to_host" if from_gpus == "1 B/s" else "host_to_device"
    assert one.startswith(f"small: left carries {rendered}")
    assert one.endswith(
        f"which it limits; check {key} of switches.left: is it in bytes, and of all its GPUs together?"
    )


def test_a_server_above_the_adapters_of_the_hosts(folder: Path) -> None:
    edited(folder, "nfs/share.yaml", ("link: port", "link: port\nlinks: 3"), ("3 GB/s", "9 GB/s"))
    machine = load_platform(folder / "small.yaml")
    (one,) = machine.machine().overruns(["nfs"])
    assert one.startswith("nfs: share reads 9 GB/s, more than the 4 GB/s of the adapters to it (net0), which")
    (two,) = machine.machine(nodes=2).overruns(["nfs"])
    assert "more than the 8 GB/s of the adapters to it (net0 of 2 hosts)" in two
    assert machine.machine(nodes=3).overruns(["nfs"]) == ()


@pytest.mark.parametrize(
    ("mounts", "connections", "adapters", "nodes", "rendered"),
    [
        (1, 8, "net0, net1", 1, "the 4 GB/s of the mounts to it (1, each over one of 2 ports), which"),
        (1, 2, "net0, net1", 1, "the 2 GB/s of the mounts to it (1, each over one of 2 ports), which"),
        (1, 8, "net0", 1, "the 4 GB/s of the adapters to it (net0), which"),
        (2, 8, "net0, net1", 1, None),
        (1, 8, "net0, net1", 2, None),  # a port for each host
    ],
    ids=["one of two ports", "few connections", "one adapter", "two mounts", "two hosts"],
)
def test_a_server_whose_ports_are_not_all_mounted(
    folder: Path, mounts: int, connections: int, adapters: str, nodes: int, rendered: str | None
) -> None:
    """Two ports of 4 GB/s: a mount is over one of them, and more adapters would not help it."""
    share = [
        ("link: port", "link: port\nlinks: 2"),
        ("3 GB/s", "8 GB/s"),
        (f"mounts: {number(1)}", f"mounts: {number(mounts)}"),
        (f"nconnect: {number(2)}", f"nconnect: {number(connections)}"),
    ]
    edited(folder, "nfs/share.yaml", *share)
    edited(folder, "small.yaml", ("share, through: [net0]", f"share, through: [{adapters}]"))
    machine = load_platform(folder / "small.yaml").machine(nodes=nodes)
    found = machine.overruns(["nfs"])
    if rendered is None:
        assert found == ()
        return
    (one,) = found
    assert one.startswith(f"nfs: share reads 8 GB/s, more than {rendered}")
    if "mounts" in rendered:
        assert rendered.startswith(f"the {rates(machine)['nfs connections in'] // GB} GB/s")
        assert one.endswith("mounts: 2 of nfs/share would use all ports; or use faster ports")


def test_warnings_of_shipped_platforms() -> None:
    """Three drives write 14.1 GB/s to a chipset of 13; drives of PCIe 4 are in slots of PCIe 3."""
    found = set()
    for path in sorted((SHIPPED / "platform").glob("*.yaml")):
        machine = load_platform(path.stem).machine()
        found |= {(path.stem, one.partition(":")[0]) for one in machine.overruns(machine.tiers)}
    assert found == {
        ("rtx-2080-desktop", "nvme"),
        ("titan-rtx-2gpu", "nvme"),
        ("xinnor-workstation", "raid"),
    }


# ---- profiles by themselves ----


def warned(folder: Path, name: str, *pairs: tuple[str, str]) -> tuple[str, ...]:
    text = (folder / name).read_text()
    for old, new in pairs:
        text = text.replace(old, new)
    (folder / name).write_text(text)
    library = Library(folder)
    kind = name.partition("/")[0]
    return profile_warnings(library, library.read(folder / name, (kind,)))


def test_single_profiles_cause_warnings(folder: Path) -> None:
    (nfs,) = warned(folder, "nfs/share.yaml")
    assert nfs.startswith("share: share writes 5 GB/s, more than the 4 GB/s of 1 port of port of the server")
    (drive,) = warned(folder, "drive/disk.yaml", ("2 GB/s", "3 GB/s"))
    assert drive.startswith("disk: disk reads 3 GB/s, more than the 2 GB/s of its slot (A cable of")
    (array,) = warned(folder, "raid/pair.yaml")
    assert array.startswith("pair: disk reads 3 GB/s")
    (nic,) = warned(folder, "nic/port.yaml", (number(16), number(4)))
    assert nic.startswith("port: port carries 4 GB/s, more than the 2 GB/s of its slot")
    assert warned(folder, "raid/pair.yaml", ("drive: disk", "drive: gone")) == ()  # checked with its platform


@pytest.mark.parametrize(
    ("written", "modules"), [("96 GB", "96 GiB"), ("1.5 TB", "1.5 TiB"), ("96 GiB", None), ("9 kB", None)]
)
def test_memory_in_powers_of_ten_causes_a_warning(folder: Path, written: str, modules: str | None) -> None:
    rendered = warned(
        folder, "host/box.yaml", ("memory_capacity: {value: 100 GB", f"memory_capacity: {{value: {written}")
    )
    assert [modules in one for one in rendered] == [True] * len(rendered) if modules else rendered == ()


def test_more_memory_than_the_board_supports_causes_a_warning(folder: Path) -> None:
    old = "memory_capacity: {value: 100 GB"
    with_maximum = f"memory_maximum: {number('96 GiB')}\nmemory_capacity: {{value: "
    (rendered,) = warned(folder, "host/box.yaml", (old, f"{with_maximum}128 GiB"))
    assert "memory_capacity 128 GiB is more than its board supports, memory_maximum 96 GiB" in rendered
    assert warned(folder, "host/box.yaml", ("128 GiB", "96 GiB")) == ()


def test_no_shipped_device_causes_a_warning() -> None:
    library = Library()
    kinds = ("drive", "raid", "nfs", "nvmeof", "nic", "host")
    entries = [library.find(path.stem, (kind,)) for kind in kinds for path in (SHIPPED / kind).glob("*.yaml")]
    rendered = [one.use.id for one in entries if profile_warnings(library, one)]
    assert rendered == []
