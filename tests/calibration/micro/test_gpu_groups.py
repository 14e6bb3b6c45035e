"""Which GPUs slow each other, on imagined machines whose copies share sockets, switches and memory fairly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from simoffload.hardware import Demand, Machine, fair_rates, load_platform
from simoffload_calibrate.micro.fit_parts import fit_memory
from simoffload_calibrate.micro.gpu_groups import (
    copying_subsets,
    found_groups,
    measured_groups,
    pair_ratios,
    subsets,
)
from simoffload_calibrate.micro.noise import pooled
from simoffload_calibrate.micro.profiles import profile_from_micro
from tests.calibration.micro.machine import PCIE, record

GB = 10**9
MIB = 1 << 20
SOCKETS = ((0, 1, 2, 3), (4, 5, 6, 7))
INTERLEAVED = ((0, 2, 4, 6), (1, 3, 5, 7))
SWITCHES = ((0, 1), (2, 3), (4, 5), (6, 7))
UNLIMITED = 10**13


class Host(NamedTuple):
    """A host whose GPUs reach ``alone`` each, ``shared`` each group together, and ``memory`` all of them."""

    groups: tuple[tuple[int, ...], ...] = ()
    shared: int = UNLIMITED
    memory: int = UNLIMITED
    alone: int = 51 * GB
    gpus: int = 8

    def rates(self, gpus: Sequence[int]) -> list[int]:
        """Return the rate of each of the GPUs that copy at once."""
        groups = list(enumerate(self.groups, start=1))
        demands = [
            Demand(((0, 1), *((number, 1) for number, members in groups if gpu in members)), self.alone)
            for gpu in gpus
        ]
        return fair_rates(demands, [self.memory, *[self.shared] * len(groups)])

    def row(self, gpus: Sequence[int], noise: Random, spread: float, **more: Any) -> dict[str, Any]:
        """Return a row of two repetitions with noise."""
        times = [
            [128 * MIB / rate * (1 + noise.gauss(0, spread)) for rate in self.rates(gpus)] for _ in range(2)
        ]
        return {"bytes": 128 * MIB, "gpus": list(gpus), "seconds": times, **more}

    def rows(self, *, spread: float = 0.03, seed: int = 0) -> list[dict[str, Any]]:
        """Return pooled rows of all subsets, as often as a worker measures them."""
        noise, copying = Random(seed), copying_subsets(self.gpus)
        rows: list[dict[str, Any]] = pooled([[self.row(gpus, noise, spread) for gpus in copying]])
        return rows


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("host", "groups"),
    [
        (Host(SOCKETS, shared=101 * GB, memory=182 * GB), SOCKETS),
        (Host(INTERLEAVED, shared=101 * GB, memory=182 * GB), INTERLEAVED),
        (Host(SWITCHES, shared=26 * GB, alone=26 * GB), SWITCHES),
        (Host(SOCKETS, shared=190 * GB, alone=55 * GB), SOCKETS),
        (Host(INTERLEAVED, shared=150 * GB), INTERLEAVED),
        (Host(SOCKETS, shared=150 * GB, memory=280 * GB), SOCKETS),
        (Host(SOCKETS, shared=140 * GB), SOCKETS),
        (Host(((0, 1, 2, 3, 4, 5),), shared=101 * GB), ((0, 1, 2, 3, 4, 5),)),
        (Host(), ()),
        (Host(memory=101 * GB), ()),
        (Host(memory=380 * GB, alone=55 * GB), ()),
        (Host((tuple(range(8)),), shared=101 * GB), ()),
        (Host(((0, 1), (2, 3)), shared=26 * GB, alone=26 * GB, gpus=4), ((0, 1), (2, 3))),
        (Host(((0, 2),), shared=60 * GB, gpus=3), ((0, 2),)),
        (Host(memory=90 * GB, gpus=4), ()),
        (Host(gpus=3), ()),
        (Host(tuple((i, i + 8) for i in range(8)), 26 * GB, alone=26 * GB, gpus=16), "pairs of trees"),
    ],
)
def test_groups_are_found_in_noise(host: Host, groups: Any, seed: int) -> None:
    expected = host.groups if groups == "pairs of trees" else groups
    assert found_groups(host.rows(seed=seed)) == list(expected)


def test_what_two_sockets_show() -> None:
    """Four of a socket share 101 GB/s and one reaches 51: with another of the socket a GPU is slower."""
    host = Host(SOCKETS, shared=101 * GB, memory=182 * GB)
    assert shown(host, 4) == pytest.approx((0.855, 1.122), abs=0.001)
    assert shown(host, 7) == pytest.approx((0.957, 1.035), abs=0.001), "the memory hides the sockets"
    for size in (4, 7):
        assert shown(Host(memory=90 * GB), size) == pytest.approx((1.0, 1.0))


def test_what_only_a_complete_socket_shows() -> None:
    """Four GPUs of 55 GB/s share 190: one of 35 pairs of sockets is full in subsets of half of them."""
    host = Host(SOCKETS, shared=190 * GB, alone=55 * GB)
    assert shown(host, 4) == pytest.approx((0.991, 1.007), abs=0.001)
    assert shown(host, 7) == pytest.approx((0.909, 1.079), abs=0.001)


def shown(host: Host, size: int) -> tuple[float, float]:
    """Return the ratios of GPUs 0 and 1, and of 0 and 4, in subsets of a size."""
    ratios = pair_ratios([row for row in host.rows(spread=0.0) if len(row["gpus"]) == size])
    return ratios[0, 1], ratios[0, 4]


def test_a_slow_slot_slows_no_other_gpu() -> None:
    rows = Host().rows(spread=0.0)
    for row in rows:
        row["seconds"] = [
            seconds * (2 if gpu == 3 else 1) for gpu, seconds in zip(row["gpus"], row["seconds"], strict=True)
        ]
    assert found_groups(rows) == []


@pytest.mark.parametrize(
    ("gpus", "size", "number", "copies"),
    [
        (3, 2, 3, 69),
        (4, 2, 6, 66 + 32),
        (5, 2, 10, 70 + 30),
        (6, 3, 20, 60 + 30),
        (7, 3, 35, 70 + 28),
        (8, 4, 70, 70 + 32),
        (10, 5, 70, 70 + 30),
        (16, 8, 70, 70 + 32),
    ],
)
def test_subsets_of_half_of_the_gpus_and_of_all_but_one(
    gpus: int, size: int, number: int, copies: int
) -> None:
    every = subsets(gpus)
    assert every == subsets(gpus), "the same on every rank"
    assert len(set(every)) == len(every)
    larger = set(combinations(range(gpus), gpus - 1)) if gpus > 3 else set()
    assert set(every[number:]) == larger
    copying = copying_subsets(gpus)
    assert set(copying) == set(every)
    assert len(copying) == copies
    found = every[:number]
    assert {len(one) for one in found} == {size}
    pairs = Counter(pair for one in found for pair in combinations(one, 2))
    assert len(pairs) == gpus * (gpus - 1) // 2
    assert max(pairs.values()) <= 1.5 * min(pairs.values()), "about equally often"


def test_one_and_two_gpus_have_no_subsets() -> None:
    assert subsets(1) == subsets(2) == copying_subsets(2) == []
    assert found_groups([]) == []


# ---- profiles ----


def measured(
    to_gpus: Host, from_gpus: Host, *, spread: float = 0.0, groups: Sequence[Sequence[int]] = SOCKETS
) -> dict[str, Any]:
    """Return a record of eight GPUs with what a worker measures on a host."""
    noise, raw = Random(1), record(gpus=8)
    ways = {"h2d": to_gpus, "d2h": from_gpus}

    def rows(subsets_: Sequence[Sequence[int]], *directions: str) -> list[dict[str, Any]]:
        return [
            ways[way].row(gpus, noise, spread, direction=way, pinned=True)
            for gpus in subsets_
            for way in directions
        ]

    together = {"together": rows([range(count) for count in (8, 6, 4, 3, 2, 1)], *ways)}
    shared = {"subsets": rows(copying_subsets(8), "h2d"), "groups": rows(groups, *ways)}
    del raw["sections"]["hooks"]
    raw["sections"]["copies_together"] = {"8": pooled([together])}
    raw["sections"]["copies_subsets"] = {"8": pooled([shared])}
    return raw


def platform_of(folder: Path, raw: dict[str, Any]) -> Any:
    for name, text in profile_from_micro(raw, "dgx-h200").items():
        (folder / name).write_text(text)
    return load_platform(folder / "platform.yaml")


def each(machine: Machine, gpus: Sequence[int], *, to_gpus: bool) -> float:
    """[GB/s] of each of some GPUs that copy pinned memory at once."""
    load: dict[int, Fraction] = {}
    for gpu in gpus:
        copy = machine.host_to_device if to_gpus else machine.device_to_host
        for index, share in copy(gpu, pinned=True).hops:
            load[index] = load.get(index, Fraction(0)) + share
    return float(min(machine.resources[index].capacity / share for index, share in load.items())) / GB


def test_the_platform_of_eight_gpus_has_their_sockets(tmp_path: Path) -> None:
    """It gives back the rates of the imagined host: 101 GB/s of a socket, 182 GB/s of all."""
    alone = int(PCIE)
    host = Host(SOCKETS, shared=101 * GB, memory=182 * GB, alone=alone)
    platform = platform_of(tmp_path, measured(host, Host(SOCKETS, 80 * GB, 105 * GB, alone)))
    assert platform.profile.gpus == ("shared0",) * 4 + ("shared1",) * 4
    assert platform.host.memory_rate == pytest.approx(182 * GB, rel=1e-3)
    machine = platform.machine()
    for count, rate in ((1, 50.0), (2, 50.0), (3, 101 / 3), (4, 101 / 4), (8, 182 / 8)):
        assert each(machine, range(count), to_gpus=True) == pytest.approx(rate, rel=2e-3)
    for count, rate in ((1, 50.0), (2, 40.0), (4, 20.0), (8, 105 / 8)):
        assert each(machine, range(count), to_gpus=False) == pytest.approx(rate, rel=2e-3)
    assert each(machine, [0, 1, 4, 5], to_gpus=True) == pytest.approx(182 / 4, rel=2e-3)
    shared = platform.profile.switches["shared0"]
    assert (shared.host_to_device.origin, shared.device_to_host.origin) == ("measured", "measured")
    assert "pinned copies to GPUs 0, 1, 2, 3 at once, and no others" in shared.host_to_device.source
    statement = platform.profile.wiring[1]
    assert (statement.about, statement.origin) == ("GPUs 0, 1, 2, 3 share a limit, shared0", "measured")
    assert "70 subsets of 4 of the GPUs at once: one of the group has 0.8" in statement.source


def test_memory_is_no_limit_where_the_groups_explain_everything(tmp_path: Path) -> None:
    """Four PCIe switches of two GPUs with 26 GB/s each, and memory that carries more than all of them."""
    host = Host(SWITCHES, shared=26 * GB, alone=26 * GB)
    raw = measured(host, host, groups=SWITCHES)
    for row in raw["sections"]["copies"]["alone"]:
        row["seconds"] = row["bytes"] / (26 * GB if row["pinned"] else 10 * GB)
    platform = platform_of(tmp_path, raw)
    assert platform.profile.gpus == tuple(f"shared{gpu // 2}" for gpu in range(8))
    found = fit_memory(raw["sections"])
    assert found["memory_rate"].value == pytest.approx(4 * 26 * GB), "all that was seen"
    assert "from_gpu_traffic" not in found
    machine = platform.machine()
    assert each(machine, [0, 2, 4, 6], to_gpus=True) == pytest.approx(26.0, rel=2e-3)
    assert each(machine, [0, 1], to_gpus=True) == pytest.approx(13.0, rel=2e-3)


def test_memory_is_never_below_what_one_group_draws() -> None:
    """All at once are slower than one group, for example because they disturb each other.

    What a group draws in the other direction is no rate of copies to GPUs.
    """
    alone = int(PCIE)
    raw = measured(Host(SOCKETS, 101 * GB, alone=alone), Host(SOCKETS, 120 * GB, alone=alone))
    for row in raw["sections"]["copies_together"]["8"]["together"]:
        if len(row["gpus"]) == 8 and row["direction"] == "h2d":
            row["seconds"] = [8 * row["bytes"] / (90 * GB)] * 8
    found = fit_memory(raw["sections"])["memory_rate"]
    assert found.value == pytest.approx(101 * GB, rel=1e-3)
    assert found.what == "GPUs 0, 1, 2, 3 copying at once, and no others"


@pytest.mark.parametrize("fewer", [50, 48])
def test_both_directions_are_compared_at_the_most_gpus(tmp_path: Path, fewer: int) -> None:
    """Two sockets of 190 GB/s slow eight GPUs of 50 GB/s by 5 %, too little to be seen as groups.

    Six GPUs draw less than eight, in either direction; this is no traffic of the memory.
    """
    host = Host(SOCKETS, shared=190 * GB, alone=int(PCIE))
    raw = measured(host, host)
    for row in raw["sections"]["copies_together"]["8"]["together"]:
        if len(row["gpus"]) == 6 and row["direction"] == "d2h":
            row["seconds"] = [row["bytes"] / (fewer * GB)] * 6
    found = fit_memory(raw["sections"])
    assert found["memory_rate"].value == pytest.approx(380 * GB)
    assert "from_gpu_traffic" not in found
    machine = platform_of(tmp_path, raw).machine()
    for to_gpus in (True, False):
        assert each(machine, range(8), to_gpus=to_gpus) == pytest.approx(47.5, rel=2e-3)


def test_without_groups_gpus_are_at_the_cpu_and_the_memory_is_the_limit(tmp_path: Path) -> None:
    host = Host(memory=182 * GB, alone=int(PCIE))
    platform = platform_of(tmp_path, measured(host, host))
    assert platform.profile.gpus == ("cpu",) * 8
    assert platform.profile.switches == {}
    assert len(platform.profile.wiring) == 1
    assert platform.host.memory_rate == pytest.approx(182 * GB, rel=1e-3)


def test_groups_need_their_rates_and_the_subsets() -> None:
    host = Host(SOCKETS, shared=101 * GB, alone=int(PCIE))
    sections = measured(host, host)["sections"]
    assert [group.gpus for group in measured_groups(sections)] == list(SOCKETS)
    assert measured_groups({}) == []
    section = sections["copies_subsets"]["8"]
    missing = section["subsets"].pop()
    assert measured_groups(sections) == [], "a record that ended before the last subset"
    section["subsets"].append(missing)
    section["groups"] = [row for row in section["groups"] if row["direction"] == "h2d"]
    assert measured_groups(sections) == [], "a record that ended before the other direction"
    del sections["copies_subsets"]
    assert measured_groups(sections) == []
