"""All-gathers: over links of their own, over PCIe, and between hosts."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from simoffload.errors import InputError
from simoffload.hardware import Machine, load_platform
from tests.hardware.conftest import crossed

GB = 10**9


@pytest.fixture
def linked(folder: Path) -> Path:
    """The small platform with links among its GPUs."""
    text = (folder / "small.yaml").read_text()
    path = folder / "linked.yaml"
    path.write_text(
        text.replace("accelerator: chip", "accelerator: linked").replace("links: none", "links: switched")
    )
    return path


def test_links_carry_a_ring(linked: Path) -> None:
    machine = load_platform(linked).machine()
    path = machine.gather(0, 4)
    assert crossed(machine, path) == {"gpu3 link out": 1, "gpu0 link in": 1}
    assert (path.latency, path.curve.rate(1)) == (20e-6, 50 * GB)
    assert crossed(machine, machine.gather(0, 2)) == {"gpu1 link out": 1, "gpu0 link in": 1}


def test_every_port_carries_one_flow_of_the_ring(linked: Path) -> None:
    machine = load_platform(linked).machine()
    used = [name for gpu in range(4) for name in crossed(machine, machine.gather(gpu, 4))]
    assert sorted(used) == sorted(f"gpu{gpu} link {way}" for gpu in range(4) for way in ("in", "out"))


def test_ring_over_pcie_behind_one_switch(small: Machine) -> None:
    path = small.gather(1, 4)
    assert crossed(small, path) == {
        "gpu0 -> left": 1,
        "left <-> gpu0": 1,
        "left -> gpu1": 1,
        "left <-> gpu1": 1,
    }
    assert path.curve.rate(100_000_000) == 12 * GB


def test_ring_over_pcie_across_the_cpu_is_staged_in_memory(small: Machine) -> None:
    assert crossed(small, small.gather(2, 4)) == {
        "gpu1 -> left": 1,
        "left <-> gpu1": 1,
        "left -> cpu": 1,
        "cpu <-> left": 1,
        "cpu -> right": 1,
        "cpu <-> right": 1,
        "right -> gpu2": 1,
        "right <-> gpu2": 1,
        "dram": 2,
    }


def test_ring_between_hosts_uses_all_adapters(linked: Path) -> None:
    machine = load_platform(linked).machine(nodes=2)
    half = Fraction(1, 2)
    path = machine.gather(4, 8)
    assert crossed(machine, path) == {
        "node0 gpu3 link out": 1,
        "node0 net0 out": half,
        "node0 net1 out": half,
        "node1 net0 in": half,
        "node1 net1 in": half,
        "node1 gpu4 link in": 1,
    }
    assert path.latency == pytest.approx(25e-6)
    assert crossed(machine, machine.gather(5, 8)) == {"node1 gpu4 link out": 1, "node1 gpu5 link in": 1}


@pytest.mark.parametrize(("gpu", "ranks"), [(0, 1), (2, 2), (-1, 2), (0, 5)])
def test_impossible_gathers_are_refused(small: Machine, gpu: int, ranks: int) -> None:
    with pytest.raises(ValueError, match="no all-gather"):
        small.gather(gpu, ranks)


def test_hosts_have_parts_of_their_own_and_share_servers(folder: Path) -> None:
    machine = load_platform(folder / "small.yaml").machine(nodes=2)
    assert (machine.nodes, machine.gpus, machine.gpus_per_node) == (2, 8, 4)
    here = crossed(machine, machine.storage_read("nfs", 3))
    there = crossed(machine, machine.storage_read("nfs", 4))
    assert set(here) & set(there) == {"nfs read"}
    assert "node1 dram" in there
    assert not set(crossed(machine, machine.storage_read("raid", 3))) & set(
        crossed(machine, machine.storage_read("raid", 4))
    )


def test_several_hosts_need_a_network(folder: Path) -> None:
    path = folder / "small.yaml"
    path.write_text(path.read_text().replace("network: [net0, net1]\n", ""))
    platform = load_platform(path)
    assert platform.machine(nodes=1).gpus == 4
    with pytest.raises(InputError, match="small has no network between hosts"):
        platform.machine(nodes=2)
