"""Routes over the small machine, and who shares what with whom."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from simoffload.errors import InputError
from simoffload.hardware import Machine, Path, load_platform
from tests.hardware.conftest import LANES, RATES, crossed, curve

GB = 10**9
HALF = Fraction(1, 2)


def in_step(machine: Machine, paths: Sequence[Path]) -> Fraction:
    """[B/s] that each of equal flows gets when all run together."""
    load: dict[int, Fraction] = {}
    for path in paths:
        for index, share in path.hops:
            load[index] = load.get(index, Fraction(0)) + share
    return min(machine.resources[index].capacity / share for index, share in load.items())


def test_resources_of_the_small_machine(small: Machine) -> None:
    capacities = {resource.name: resource.capacity for resource in small.resources}
    assert capacities["dram"] == 30 * GB  # 60 GB/s x 0.5
    assert capacities["cpu -> left"] == 12 * GB  # the curve's best
    assert capacities["left -> cpu"] == 8 * GB
    assert capacities["cpu <-> left"] == 15 * GB  # 0.75 x (12 + 8)
    assert capacities["raid.0 -> left"] == 2 * GB  # 4 lanes x 1 GB/s x 0.5
    assert capacities["net0 in"] == 4 * GB  # below the 8 GB/s of its slot
    assert (capacities["raid read"], capacities["raid write"]) == (3 * GB, 1 * GB)
    assert (capacities["nfs read"], capacities["nfs write"]) == (
        3 * GB,
        4 * GB,
    )  # written no faster than its link
    assert capacities["nfs connections in"] == 2 * GB
    assert capacities["pfs requests in flight"] == 8 * GB
    assert (capacities["far read"], capacities["far write"]) == (1_500_000_000, 500_000_000)


def test_names_of_resources_are_distinct(small: Machine) -> None:
    names = [resource.name for resource in small.resources]
    assert len(names) == len(set(names))


def test_copy_to_the_gpu(small: Machine) -> None:
    path = small.host_to_device(1, pinned=True)
    assert crossed(small, path) == {
        "dram": 1,
        "cpu -> left": 1,
        "cpu <-> left": 1,
        "left -> gpu1": 1,
        "left <-> gpu1": 1,
    }
    assert path.latency == 10e-6
    assert path.curve.rate(10_000_000) == 8 * GB


def test_pageable_copy_costs_three_times_the_memory_traffic(small: Machine) -> None:
    path = small.host_to_device(1, pinned=False)
    assert crossed(small, path)["dram"] == 3
    assert path.curve.rate(1_000_000) == 4 * GB  # small copies are no faster than pinned ones
    assert path.curve.rate(100_000_000) == 6 * GB


def test_measured_memory_traffic_of_copies_is_used(folder: pathlib.Path) -> None:
    measured = "{value: %s, origin: measured, source: seen, date: 2026-01-01}"
    host = folder / "host" / "box.yaml"
    more = f"from_gpu_traffic: {measured % 1.25}\npageable_traffic: {measured % 5.5}\n"
    host.write_text(host.read_text() + more)
    machine = load_platform(folder / "small.yaml").machine()
    assert crossed(machine, machine.device_to_host(2, pinned=True))["dram"] == Fraction(5, 4)
    assert crossed(machine, machine.host_to_device(2, pinned=False))["dram"] == Fraction(11, 2)
    assert crossed(machine, machine.host_to_device(2, pinned=True))["dram"] == 1
    assert crossed(machine, machine.device_to_host(2, pinned=False))["dram"] == 3


def test_the_rate_of_pageable_copies_is_that_of_the_cpu(folder: pathlib.Path) -> None:
    """It is no faster than copies of pinned memory."""
    host = folder / "host" / "box.yaml"
    text = host.read_text()
    for rate, small, large in ((5, 4, 5), (7, 4, 7), (50, 4, 12)):
        host.write_text(text.replace("[1 MB, 6 GB/s]", f"[1 MB, {rate} GB/s]"))
        copies = load_platform(folder / "small.yaml").machine().host_to_device(1, pinned=False).curve
        assert (copies.rate(1_000_000), copies.rate(100_000_000)) == (small * GB, large * GB)


def test_copy_from_the_gpu(small: Machine) -> None:
    path = small.device_to_host(2, pinned=True)
    assert crossed(small, path) == {
        "dram": 1,
        "gpu2 -> right": 1,
        "right <-> gpu2": 1,
        "right -> cpu": 1,
        "cpu <-> right": 1,
    }
    assert path.curve.rate(1) == 8 * GB


def test_two_gpus_behind_one_switch_share_its_cable(small: Machine) -> None:
    copies = [small.host_to_device(gpu, pinned=True) for gpu in range(4)]
    assert in_step(small, copies[:1]) == 12 * GB
    assert in_step(small, copies[:2]) == 6 * GB
    assert in_step(small, copies[1:3]) == 12 * GB  # one of each switch
    assert in_step(small, copies) == 6 * GB


def test_a_switch_may_state_its_rates_instead_of_its_lanes(folder: pathlib.Path) -> None:
    """They are what its GPUs share; its slots, and the share of both directions, are those of its PCIe."""
    file = folder / "small.yaml"
    file.write_text(file.read_text().replace(LANES, RATES))
    machine = load_platform(file).machine()
    capacities = {resource.name: resource.capacity for resource in machine.resources}
    assert (capacities["cpu -> left"], capacities["left -> cpu"]) == (9 * GB, 6 * GB)
    assert capacities["cpu <-> left"] == 0.75 * 15 * GB
    assert capacities["cpu -> right"] == capacities["left -> gpu0"] == 12 * GB
    copies = [machine.host_to_device(gpu, pinned=True) for gpu in range(4)]
    assert in_step(machine, copies[:1]) == 9 * GB
    assert in_step(machine, copies[:2]) == 4.5 * GB
    stated = [line for line in load_platform(file).inputs if line.key == "switches.left.host_to_device"]
    assert [line.text for line in stated] == ["9 GB/s"]


def test_all_gpus_share_the_memory(small: Machine) -> None:
    copies = [small.host_to_device(gpu, pinned=False) for gpu in range(4)]
    assert in_step(small, copies) == Fraction(30 * GB, 12)  # 4 flows x 3 bytes


def test_both_directions_of_a_cable_slow_each_other_down(small: Machine) -> None:
    copies = [small.host_to_device(0, pinned=True), small.device_to_host(0, pinned=True)]
    assert in_step(small, copies) == Fraction(15 * GB, 2)


def test_read_of_a_striped_array_into_memory(small: Machine) -> None:
    path = small.storage_read("raid", 0)
    assert crossed(small, path) == {
        "dram": 1,
        "raid read": 1,
        "raid both ways": 1,
        "raid.0 -> left": HALF,
        "raid.1 -> right": HALF,
        "left -> cpu": HALF,
        "cpu <-> left": HALF,
        "right -> cpu": HALF,
        "cpu <-> right": HALF,
    }
    assert path.curve.rate(1) == path.curve.rate(10**12) == 3 * GB
    assert (path.latency, path.request_rate) == (100e-6, 2 * GB)


def test_all_ranks_share_the_array(small: Machine) -> None:
    reads = [small.storage_read("raid", gpu) for gpu in range(4)]
    assert in_step(small, reads) == Fraction(3 * GB, 4)


def test_reading_shares_the_uplink_with_copies_in_the_other_direction(small: Machine) -> None:
    """Both cables carry half of the read upwards and one copy downwards: 1.5 of 15 GB/s."""
    flows = [small.storage_read("raid", 0), *(small.host_to_device(gpu, pinned=True) for gpu in (0, 2))]
    load = sum(crossed(small, path).get("cpu <-> left", Fraction(0)) for path in flows)
    assert load == Fraction(3, 2)


def test_blocks_take_more_of_a_cable_in_both_directions(folder: pathlib.Path) -> None:
    """Copies of 1 MiB reach 10 of the 15 GB/s, those of 64 MiB all; between them the rate rises with the
    logarithm of the size."""
    wire = folder / "pcie/wire.yaml"
    wire.write_text(wire.read_text() + f"both_ways_by_size: {curve('[1 MiB, 10 GB/s]')}\n")
    machine = load_platform(folder / "small.yaml").machine()
    expected = {None: 1, 1: Fraction(3, 2), 1 << 20: Fraction(3, 2), 8 << 20: Fraction(6, 5), 64 << 20: 1}
    for size, share in expected.items():
        for way in (machine.host_to_device, machine.device_to_host):
            path = crossed(machine, way(0, pinned=True, size=size))
            assert {name: one for name, one in path.items() if one != 1} == (
                {} if share == 1 else dict.fromkeys(("cpu <-> left", "left <-> gpu0"), share)
            )
    both = [way(0, pinned=True, size=1 << 20) for way in (machine.host_to_device, machine.device_to_host)]
    assert 2 * in_step(machine, both) == 10 * GB
    assert crossed(machine, both[0]).keys() == crossed(machine, machine.host_to_device(0, pinned=True)).keys()


def test_large_copies_have_one_rate_in_both_directions(folder: pathlib.Path) -> None:
    wire = folder / "pcie/wire.yaml"
    wire.write_text(wire.read_text() + f"both_ways_by_size: {curve('[64 MiB, 10 GB/s]')}\n")
    with pytest.raises(InputError, match="sizes from 64 MiB on have both_ways"):
        load_platform(folder / "small.yaml")


def test_write_of_a_striped_array(small: Machine) -> None:
    path = small.storage_write("raid", 0)
    assert crossed(small, path) == {
        "dram": 1,
        "raid write": 1,
        "raid both ways": 3,
        "left -> raid.0": HALF,
        "right -> raid.1": HALF,
        "cpu -> left": HALF,
        "cpu <-> left": HALF,
        "cpu -> right": HALF,
        "cpu <-> right": HALF,
    }
    assert (path.curve.rate(1), path.latency) == (GB, 50e-6)


def test_drives_share_their_time_between_reads_and_writes(small: Machine) -> None:
    """Reading 3 GB/s or writing 1 GB/s fills the array: at equal rates 1 / (1/3 + 1/1) each."""
    read, write = small.storage_read("raid", 0), small.storage_write("raid", 0)
    full = {one.name: one.capacity for one in small.resources}
    assert crossed(small, write)["raid both ways"] == Fraction(full["raid read"], full["raid write"])
    alone = in_step(small, [write])
    assert alone == GB
    assert in_step(small, [read, write]) == 1 / (1 / Fraction(full["raid read"]) + 1 / Fraction(GB))


def test_gpudirect_read_below_one_switch_does_not_cross_the_cpu(small: Machine) -> None:
    """Half of the array is behind the GPU's switch, the other half comes by way of the CPU; no memory."""
    assert crossed(small, small.storage_read("raid", 0, gds=True)) == {
        "raid read": 1,
        "raid both ways": 1,
        "raid.0 -> left": HALF,
        "raid.1 -> right": HALF,
        "right -> cpu": HALF,
        "cpu <-> right": HALF,
        "cpu -> left": HALF,
        "cpu <-> left": HALF,
        "left -> gpu0": 1,
        "left <-> gpu0": 1,
    }


def test_gpudirect_write(small: Machine) -> None:
    assert crossed(small, small.storage_write("nfs", 1, gds=True)) == {
        "nfs write": 1,
        "nfs connections out": 1,
        "net0 out": 1,
        "gpu1 -> left": 1,
        "left <-> gpu1": 1,
    }


def test_nfs_read_crosses_connections_server_and_adapter(small: Machine) -> None:
    path = small.storage_read("nfs", 3)
    assert crossed(small, path) == {
        "nfs read": 1,
        "nfs connections in": 1,
        "net0 in": 1,
        "left -> cpu": 1,
        "cpu <-> left": 1,
        "dram": 1,
    }
    assert (path.curve.rate(1), path.latency, path.request_rate) == (2 * GB, 1e-3, GB)
    assert in_step(small, [path] * 4) == HALF * GB


def test_parallel_filesystem_is_striped_over_the_adapters(small: Machine) -> None:
    path = small.storage_read("pfs", 0)
    shares = crossed(small, path)
    assert (shares["net0 in"], shares["net1 in"]) == (HALF, HALF)
    assert shares["pfs requests in flight"] == shares["pfs read"] == 1
    assert path.curve.rate(1) == 4 * GB  # two of the four targets
    assert in_step(small, [path] * 4) == 2 * GB  # 8 GB/s of both adapters and of the window


def test_reads_and_writes_share_the_window_of_a_parallel_filesystem(small: Machine) -> None:
    both = [small.storage_read("pfs", 0), small.storage_write("pfs", 0)]
    assert sum(crossed(small, path)["pfs requests in flight"] for path in both) == 2


def test_unknown_gpus_and_tiers_are_refused(small: Machine) -> None:
    with pytest.raises(ValueError, match="no GPU 4; there are 4"):
        small.host_to_device(4, pinned=True)
    with pytest.raises(KeyError):
        small.storage_read("dram", 0)


def test_outstanding_bytes_limit_a_flow(small: Machine) -> None:
    """A request of 500 kB takes 100 us and 250 us at 2 GB/s; one of 1 MB streams from both drives."""
    path = small.storage_read("raid", 0)
    assert path.outstanding_rate(3_500_000, block=500_000) == 10 * GB
    assert path.outstanding_rate(3_500_000, block=1_000_000) == 10 * GB


def test_the_topology_is_built_once_and_on_demand(small: Machine) -> None:
    """What fits on a thousand hosts is known without them."""
    laid = []

    def build_topology() -> tuple:
        laid.append(small.nodes)
        return small.resources, small.topology

    machine = replace(small, build_topology=build_topology)
    assert machine.tiers["dram"].capacity
    assert laid == []
    assert machine.resources == small.resources
    assert machine.topology is small.topology
    assert laid == [1]
