"""The shipped profiles: valid, with an origin beside every number, and wired as published."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from simoffload.hardware import Accelerator, Host, Machine, list_profiles, load_platform, load_profile
from simoffload.hardware.library import KINDS
from simoffload.hardware.profiles import Pcie

GB = 10**9
FOLDER = Path(__file__).parents[2] / "hardware_profiles"
FILES = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*.yaml"))
PLATFORMS = [path.stem for path in FILES if path.parent.name == "platform"]

# What is no number of a device: names, references, counts of parts and the shape of the wiring.
STRUCTURE = {"kind", "id", "name", "notes", "cpu", "profile", "drive", "target", "link", "links", "protocol"}
STRUCTURE |= {"level", "count", "copy_lanes", "currency", "sold", "form_factor", "fabric", "base"}


def loaded(path: Path) -> Any:
    return yaml.safe_load((FOLDER / path).read_text())


def unsourced(node: Any, key: str = "") -> Iterator[str]:
    """Leaves that stand outside of a mapping with an origin and are no structure."""
    if isinstance(node, dict):
        if not {"origin", "source", "date"} <= node.keys():
            for name, child in node.items():
                if name not in STRUCTURE:
                    yield from unsourced(child, f"{key}.{name}")
    elif node is not None:  # which leaves a key of the base out
        yield key


def statements(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "origin" in node:
            yield node
        for child in node.values():
            yield from statements(child)
    if isinstance(node, list):
        for child in node:
            yield from statements(child)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_file_is_valid_and_named_after_its_id(path: Path) -> None:
    profile = load_profile(path.parent.name, path.stem)
    assert isinstance(profile, KINDS[path.parent.name])
    assert profile.id == path.stem


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name != "platform"], ids=str)
def test_every_number_has_origin_source_and_date(path: Path) -> None:
    assert list(unsourced(loaded(path))) == []


@pytest.mark.parametrize("path", FILES, ids=str)
def test_numbers_from_memory_are_estimates(path: Path) -> None:
    for statement in statements(loaded(path)):
        assert statement["source"].strip()
        if re.search(r"from memory|unverified|an example", statement["source"]):
            assert statement["origin"] == "estimate", statement


@pytest.mark.parametrize("platform", PLATFORMS)
def test_platform_holds_wiring_and_no_device_numbers(platform: str) -> None:
    """Its only figures are lanes and counts, and rates of switches with their sources."""
    tree = loaded(Path("platform") / f"{platform}.yaml")
    for prose in ("wiring", "notes", "name"):
        tree.pop(prose, None)
    for switch in tree.get("switches", {}).values():
        for rate in ("host_to_device", "device_to_host"):
            if rate in switch:
                assert list(unsourced(switch.pop(rate))) == []
    assert re.findall(r"\d+ ?[kMGT]i?B(?:/s)?\b", str(tree)) == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_path_of_a_platform_can_be_computed(platform: str) -> None:
    machine = load_platform(platform).machine()
    for gpu in range(machine.gpus):
        for pinned in (True, False):
            assert machine.host_to_device(gpu, pinned=pinned).curve.rate(1 << 20) > 0
            assert machine.device_to_host(gpu, pinned=pinned).curve.rate(1 << 20) > 0
        for tier in set(machine.tiers) - {"hbm", "dram"}:
            for gds in (True, False):
                assert machine.storage_read(tier, gpu, gds=gds).hops
                assert machine.storage_write(tier, gpu, gds=gds).hops
        if machine.gpus > 1:
            assert machine.gather(gpu, machine.gpus).hops
    assert all(resource.capacity > 0 for resource in machine.resources)


def test_ids_are_distinct_among_storage_targets() -> None:
    """A tier names its target by id alone."""
    storage = [path.stem for path in FILES if path.parent.name in {"drive", "raid", "nfs", "pfs", "nvmeof"}]
    assert len(storage) == len(set(storage))


def test_library_covers_what_the_product_promises() -> None:
    ids = {(summary.kind, summary.id) for summary in list_profiles()}
    assert ids == {(path.parent.name, path.stem) for path in FILES}
    gpus = [
        "a100-40g-sxm",
        "a100-80g-sxm",
        "h100-sxm",
        "h100-nvl",
        "h200-sxm",
        "b200-sxm",
        "gh200-96g",
        "l40s",
    ]
    gpus += ["rtx-pro-6000-blackwell", "rtx-4090", "rtx-a6000", "v100-32g-sxm", "t4", "mi300x"]
    gpus += ["a100-80g-sxm-330w", "h800-sxm", "h20-sxm", "rtx-2080", "rtx-3070-ti", "rtx-3090", "rtx-5090"]
    gpus += ["gb10", "titan-rtx"]
    gpus += ["rtx-3060", "rtx-4060-ti-16gb", "rtx-4070", "rtx-4070-ti-super", "rtx-4080-super"]
    gpus += ["rtx-5060-ti", "rtx-5070-ti", "rtx-5080", "a10", "l4", "l20", "h100-pcie"]
    gpus += ["b300-sxm", "gb200", "gb300", "mi325x", "mi355x"]
    assert {("accelerator", gpu) for gpu in gpus} <= ids
    assert {("pcie", f"gen{generation}") for generation in (3, 4, 5, 6)} <= ids
    levels = {loaded(path)["level"] for path in FILES if path.parent.name == "raid"}
    assert levels == {0, 5, 6, 10}
    machines = ["dgx-a100", "dgx-h100", "dgx-h200", "dgx-2", "h100-2nvme", "l40s-workstation"]
    machines += ["xinnor-workstation", "rtx-4090-desktop", "a100-330w-8gpu", "hgx-h800"]
    machines += ["hgx-h20", "rtx-2080-desktop", "rtx-3070-ti-desktop", "rtx-3090-workstation"]
    machines += ["rtx-5090-workstation", "dgx-spark", "rtx-4090-2gpu", "titan-rtx-2gpu", "h200-2gpu-vm"]
    machines += ["h100-1gpu-vm", "h200-1gpu-vm"]
    assert {("platform", machine) for machine in machines} <= ids


def share(machine: Machine, name: str, paths: list[tuple[tuple[int, Any], ...]]) -> Any:
    (index,) = (i for i, resource in enumerate(machine.resources) if resource.name == name)
    return sum(dict(hops).get(index, 0) for hops in paths)


def test_dgx_a100_two_gpus_share_an_uplink() -> None:
    machine = load_platform("dgx-a100").machine()
    copies = [machine.host_to_device(gpu, pinned=True).hops for gpu in range(8)]
    assert [share(machine, f"cpu -> plx{i}", copies) for i in range(4)] == [2, 2, 2, 2]
    assert share(machine, "dram", copies) == 8
    uplinks = [r.capacity for r in machine.resources if re.fullmatch(r"cpu -> plx\d", r.name)]
    assert uplinks == [26 * GB] * 4


def test_dgx_a100_storage() -> None:
    machine = load_platform("dgx-a100").machine()
    assert {name: tier.capacity for name, tier in machine.tiers.items()} == {
        "hbm": int(39.39 * 2**30),
        "dram": 2**40,
        "raid": 15_360 * GB,
        "nfs": 92_000 * GB,
        "ai400x2": 140_000 * GB,
    }
    reads = [machine.storage_read("ai400x2", gpu).hops for gpu in range(8)]
    assert share(machine, "ib5 in", reads) == 1  # eight reads over eight adapters
    assert share(machine, "plx2 -> cpu", reads) == 2
    drives = [machine.storage_read("raid", gpu).hops for gpu in range(8)]
    assert [share(machine, f"raid.{i} -> plx{i}", drives) for i in range(4)] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("platform", "each"),
    [("dgx-h200", (55.5, 55.5, 47.5, 47.5)), ("h200-8gpu-vm", (55.5, 50.5, 25.25, 22.7))],
)
def test_gpus_that_copy_at_once_share_a_socket(platform: str, each: tuple[float, ...]) -> None:
    """The machine with eight GPUs gave 50.8, 50.6, 25.2 and 22.7 GB/s to each of 1, 2, 4 and 8."""
    machine = load_platform(platform).machine()
    for gpus, rate in zip((1, 2, 4, 8), each, strict=True):
        shares: dict[int, Any] = {}
        for gpu in range(gpus):
            for index, part in machine.host_to_device(gpu, pinned=True).hops:
                shares[index] = shares.get(index, 0) + part
        slowest = min(machine.resources[index].capacity / total for index, total in shares.items())
        assert float(slowest) / GB == pytest.approx(rate, rel=0.01)


def test_dgx_2_first_ranks_have_a_tree_each() -> None:
    """Memory to the GPUs of a tree is limited to one cable; four ranks use four."""
    machine = load_platform("dgx-2").machine()
    copies = [machine.host_to_device(gpu, pinned=True).hops for gpu in range(16)]
    assert [share(machine, f"cpu -> tree{i}", copies[:4]) for i in range(4)] == [1, 1, 1, 1]
    assert [share(machine, f"cpu -> tree{i}", copies) for i in range(4)] == [4, 4, 4, 4]
    read = machine.storage_read("raid", 0)
    assert read.curve.rate(1) == 28 * GB


def test_h100_with_two_drives_reads_thirteen() -> None:
    assert load_platform("h100-2nvme").machine().storage_read("raid", 0).curve.rate(1) == 13 * GB


def test_drives_behind_the_chipset_share_its_cable() -> None:
    machine = load_platform("xinnor-workstation").machine()
    read = machine.storage_read("raid", 0).hops
    assert share(machine, "chipset -> cpu", [read]) == 1
    (cable,) = (r.capacity for r in machine.resources if r.name == "chipset -> cpu")
    assert cable == 13_100_000_000  # half of the lanes of the measured 26.2 GB/s


@pytest.mark.parametrize(
    ("generation", "rate"), [("gen3", 15.7536), ("gen4", 31.5072), ("gen5", 63.0144), ("gen6", 120.9984)]
)
def test_encoded_rates_of_sixteen_lanes(generation: str, rate: float) -> None:
    pcie = load_profile("pcie", generation)
    assert isinstance(pcie, Pcie)
    assert 16 * pcie.lane_rate.value * pcie.encoding.value == pytest.approx(rate * GB)
    assert pcie.host_to_device.top < rate * GB


def test_accelerator_rates() -> None:
    gpu = load_profile("accelerator", "a100-40g-sxm")
    assert isinstance(gpu, Accelerator)
    assert gpu.hbm_rate == pytest.approx(0.8 * 1555 * GB)
    assert gpu.matmul_rate(1e15, "float16") == pytest.approx(0.86 * 312e12)
    assert gpu.matmul_rate(1e9, "float32") == pytest.approx(0.521 * 19.5e12)
    assert gpu.kernel_latency_s == pytest.approx(3e-6)


def test_float16_is_slower_where_it_was_measured() -> None:
    gpu = load_profile("accelerator", "h200-sxm")
    assert isinstance(gpu, Accelerator)
    assert gpu.matmul_rate(1e12, "float16") == pytest.approx(0.96 * gpu.matmul_rate(1e12, "bfloat16"))


@pytest.mark.parametrize("name", [path.stem for path in FILES if path.parent.name == "host"])
def test_thread_costs_of_another_machine_are_estimates(name: str) -> None:
    """They were measured on a machine that is none of these hosts, and are scaled by the CPU's speed.

    Those of hosts with a factor are in tests/validation/test_shipped_hosts.py.
    """
    host = load_profile("host", name)
    assert isinstance(host, Host)
    costs = host.deepspeed
    assert {getattr(costs, field).origin for field in type(costs).model_fields} == {"estimate"}
    scale = costs.hook.value / 121.4e-6
    assert 0.5 < scale < 2
    if host.host_factor is None:
        assert costs.gathered_parameter.value == pytest.approx(22.32e-6 * scale, rel=0.01)


def test_products_on_a_cpu_read_memory_no_faster_than_it_was_measured() -> None:
    """A virtual machine has a part of its host's memory, whose peak the profile states: 369 GB/s of products
    where 16 threads read 92 to 102."""
    measured = 0
    for entry in list_profiles("host"):
        host = load_profile("host", entry.id)
        assert isinstance(host, Host)
        if host.cpu_products is None and host.stream_fraction.origin == "measured":
            measured += 1
            assert host.products.weights.value <= host.stream_fraction.value
            assert host.products.experts.value <= host.stream_fraction.value
    assert measured >= 3


def test_only_virtual_machines_copy_pageable_memory_as_virtual_machines_do() -> None:
    """What another host does not state is no median of rented machines, whatever its slot."""
    taken = set()
    for name in PLATFORMS:
        host = load_platform(name).machine(nodes=1).host
        if host.pageable_copies.source.startswith("median of calibrate micro"):
            taken.add(host.id)
    assert taken == {"h100-1gpu-vm-host", "h200-1gpu-vm-host", "h200-8gpu-vm-host"}


def test_a_faster_card_on_a_desk_copies_pageable_memory_no_slower() -> None:
    slower, faster = (
        load_platform(name).machine(nodes=1).host_to_device(0, pinned=False).curve
        for name in ("rtx-4090-desktop", "rtx-5090-workstation")
    )
    for size in (1 << 20, 64 << 20, 1 << 30):
        assert faster.rate(size) >= slower.rate(size)
