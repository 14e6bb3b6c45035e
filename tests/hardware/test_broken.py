"""Broken profiles and platforms: one clear line for each thing that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload.errors import InputError, Problem
from simoffload.hardware import load_platform
from tests.hardware.conftest import LANES, RATES, curve, number


def change(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def problems(folder: Path) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        load_platform(folder / "small.yaml")
    return caught.value.problems


@pytest.mark.parametrize(
    ("name", "old", "new", "key", "message"),
    [
        ("drive/disk.yaml", "capacity:", "capcity:", "capcity", 'did you mean "capacity"'),
        ("drive/disk.yaml", "value: 2 GB/s", "value: 2 GB", "read.value", "is a size, not a rate"),
        ("drive/disk.yaml", "value: 2 GB/s", "value: 2", "read.value", "unit"),
        ("drive/disk.yaml", "value: 2 GB/s", "value: -2 GB/s", "read.value", "-2 GB/s"),
        (
            "drive/disk.yaml",
            "origin: spec",
            "origin: guess",
            "capacity.origin",
            '"spec", "measured" or "estimate"',
        ),
        ("drive/disk.yaml", ', source: "made up"', "", "capacity.source", "missing"),
        ("drive/disk.yaml", "2026-11-20", "last week", "capacity.date", "date"),
        ("drive/disk.yaml", "{value: 1 TB", "{valeu: 1 TB", "capacity.valeu", 'did you mean "value"'),
        ("drive/disk.yaml", "lanes: {value: 4", "lanes: {value: 0", "pcie.lanes.value", "1"),
        ("drive/disk.yaml", "kind: drive", "kind: drives", "kind", 'did you mean "drive"'),
        ("drive/disk.yaml", "kind: drive\n", "", "kind", "missing; a profile must state its kind"),
        ("drive/disk.yaml", "id: disk", "id: My Disk", "id", "My Disk"),
        ("raid/pair.yaml", "value: 0.75", "value: 1.5", "read_efficiency.value", "1"),
        ("raid/pair.yaml", "level: 0", "level: 6", "", "RAID6 needs at least 4 drives, not 2"),
        ("raid/pair.yaml", "level: 0", "level: 7", "level", "7"),
        ("pcie/wire.yaml", "[1 MB, 4 GB/s]", "[200 MB, 4 GB/s]", "host_to_device", "must increase"),
        ("pfs/stripes.yaml", "stripe_count: {value: 2", "stripe_count: {value: 9", "", "above osts 4"),
        ("pfs/stripes.yaml", "value: 1 ms", "value: 0 ms", "latency.value", "above 0"),
        ("accelerator/chip.yaml", "[1 GFLOP, 0.25]", "[0 GFLOP, 0.25]", "matmul_efficiency", "above 0 FLOP"),
        ("small.yaml", "host: box", "hots: box", "hots", 'did you mean "host"'),
        (
            "drive/disk.yaml",
            f"read: {number('2 GB/s')}",
            "read: 2 GB/s",
            "read",
            'must be a mapping, got "2 GB/s"; write {value: 2 GB/s, origin: …, source: …, date: …}',
        ),
        (
            "raid/pair.yaml",
            f"read_efficiency: {number(0.75)}",
            "read_efficiency: 0.75",
            "read_efficiency",
            "got 0.75; write {value: 0.75, origin: …",
        ),
        (
            "pcie/wire.yaml",
            f"host_to_device: {curve('[1 MB, 4 GB/s]', '[100 MB, 12 GB/s]')}",
            "host_to_device: 12 GB/s",
            "host_to_device",
            'got "12 GB/s"; write {points: [[1 MiB, 3 GB/s], …], origin: …, source: …, date: …}',
        ),
        (
            "pcie/wire.yaml",
            "both_ways:",
            f"pageable: {curve('[1 MB, 6 GB/s]')}\nboth_ways:",
            "pageable",
            "move this curve, as it is, to the profile of the host",
        ),
        (
            "host/box.yaml",
            "memcpy_rate:",
            f"pageable_rate: {number('6 GB/s')}\nmemcpy_rate:",
            "pageable_rate",
            "write pageable: {points: [[256 MiB, RATE]], origin: …",
        ),
    ],
)
def test_invalid_files_are_refused(
    folder: Path, name: str, old: str, new: str, key: str, message: str
) -> None:
    change(folder, name, old, new)
    found = [problem for problem in problems(folder) if problem.key == key]
    assert found, problems(folder)
    assert any(message in problem.message for problem in found), found
    assert all(problem.path == str(folder / name) for problem in found)


@pytest.mark.parametrize(
    ("old", "new", "key", "message"),
    [
        ("host: box", "host: bok", "host", 'there is no host "bok"; did you mean "box"?'),
        ("pcie: wire", "pcie: wrie", "switches.left.pcie", 'there is no pcie "wrie"; did you mean "wire"?'),
        (
            "profile: port",
            "profile: prot",
            "nics.net0.profile",
            'there is no nic "prot"; did you mean "port"?',
        ),
        ("profile: disk", "profile: dsik", "tiers.disk.profile", 'did you mean "disk"?'),
        ("gpus: [left, left", "gpus: [left, lfet", "gpus[1]", 'no vertex "lfet" (has: cpu, left, right)'),
        ("left: {to: cpu", "left: {to: cup", "switches.left.to", 'no vertex "cup"'),
        ("profile: port, at: left", "profile: port, at: lefty", "nics.net0.at", 'did you mean "left"?'),
        ("at: [left, right]", "at: [left, rihgt]", "tiers.raid.at[1]", 'did you mean "right"?'),
        ("through: [net0]", "through: [net9]", "tiers.nfs.through[0]", 'no adapter "net9" (has: net0, net1)'),
        ("network: [net0", "network: [net9", "network[0]", 'no adapter "net9"'),
        ("through: [net0]", "through: [net0, net0]", "tiers.nfs.through", 'names "net0" twice'),
        ("network: [net0, net1]", "network: [net1, net1]", "network", 'names "net1" twice'),
        ("left: {to: cpu", "left: {to: left", "switches.left.to", "does not lead to cpu"),
        ("at: [cpu]", "at: [left, right]", "tiers.disk.at", "2 vertices for 1 drive"),
        (
            "profile: disk, at: [cpu]",
            "profile: share, at: [cpu]",
            "tiers.disk.at",
            "is remote; write `through`",
        ),
        ("profile: disk, at: [cpu]", "profile: disk, through: [net0]", "tiers.disk.through", "write `at`"),
        ("profile: disk, at: [cpu]", "profile: disk", "tiers.disk", "either `at`"),
        ("at: [cpu]", "at: [cpu], through: [net0]", "tiers.disk", "either `at`"),
        ("gpu_links: none", "gpu_links: switched", "gpu_links", "chip has no links to other GPUs"),
        (
            "pcie: wire, lanes: 16}\n  right",
            "pcie: wire}\n  right",
            "switches.left",
            "give either `lanes`, or both",
        ),
        (LANES, RATES.replace("wire,", "wire, lanes: 4,"), "switches.left", "give either `lanes`, or both"),
        (LANES, RATES.replace("device_to_host", "lanes"), "switches.left.lanes.value", "whole number"),
        (
            LANES,
            RATES.replace(number("9 GB/s"), "9 GB/s"),
            "switches.left.host_to_device",
            'must be a mapping, got "9 GB/s"; write {value: 9 GB/s, origin: …, source: …, date: …}',
        ),
        (LANES, RATES.replace("9 GB/s", "9 GB"), "switches.left.host_to_device.value", "is a size"),
        ("net0: {profile", "left: {profile", "", '"left" names two things'),
        ("  disk: {", "  dram: {", "", '"dram" is reserved'),
        ("  disk: {", "  gpu0: {", "", '"gpu0" names two things'),
        ("  right: {to", "  left: {to", "switches.left", "key given twice"),
    ],
)
def test_invalid_wiring_is_refused(folder: Path, old: str, new: str, key: str, message: str) -> None:
    change(folder, "small.yaml", old, new)
    found = [problem for problem in problems(folder) if problem.key == key]
    assert found, problems(folder)
    assert any(message in problem.message for problem in found), found
    assert all(problem.path == str(folder / "small.yaml") and problem.line for problem in found)


def test_a_tier_behind_a_cycle_is_unreachable(folder: Path) -> None:
    change(folder, "small.yaml", "left: {to: cpu", "left: {to: right")
    change(folder, "small.yaml", "right: {to: cpu", "right: {to: left")
    unreachable = [problem.key for problem in problems(folder) if "unreachable from cpu" in problem.message]
    assert unreachable == ["tiers.raid", "tiers.nfs", "tiers.pfs", "tiers.far"]


def test_all_problems_are_reported_at_once(folder: Path) -> None:
    change(folder, "small.yaml", "host: box", "host: bok")
    change(folder, "small.yaml", "gpus: [left", "gpus: [lfet")
    change(folder, "drive/disk.yaml", "capacity:", "capcity:")
    keys = [problem.key for problem in problems(folder)]
    assert {"host", "gpus[0]", "capcity"} <= set(keys)
    assert len(keys) == len(set(keys))


def test_problems_name_the_line(folder: Path) -> None:
    change(folder, "small.yaml", "host: box", "host: bok")
    (problem,) = problems(folder)
    assert (problem.line, problem.column) == (5, 7)


def test_a_missing_data_type_lists_the_supported_ones(folder: Path) -> None:
    machine = load_platform(folder / "small.yaml").machine()
    assert machine.accelerator.matmul_rate(10e9, "float16") == pytest.approx(0.5 * 100e12)
    with pytest.raises(InputError, match="chip does not support bfloat16; it supports float32, float16"):
        machine.accelerator.matmul_rate(1e9, "bfloat16")
