"""Shipped hosts have the medians of all measured machines, and the reference host's costs times theirs."""

from __future__ import annotations

import datetime
from math import log
from pathlib import Path
from typing import Any

import pytest

from simoffload.hardware import (
    HOST_SPREAD,
    P90,
    Host,
    Pcie,
    load_platform,
    load_profile,
)
from simoffload.hardware.unmeasured import shipped_unmeasured
from simoffload_calibrate.reference import reference_costs
from validation.host_records import (
    HostRecord,
    deviations,
    host_records,
    measured,
    pooled,
    pooled_pageable,
    robust,
    spread_around,
)
from validation.measured import compare_measured
from validation.shipped_hosts import (
    HOSTS,
    Statement,
    files,
    host_statements,
    multiples,
    without,
    written,
)

FACTORS = {
    "H100": "n 1.6, p 1.55, r 1.45, s 1.79, t 2.42, v 1.55, w 2.64",
    "H200": "a 0.985, aa 1.38, c 1.02, e 1.04, f 0.984, g 1.01, o 1.36, q 1.3, u 1.24, w 1.22, x 1.74, "
    "y 1.26, z 1.69",
}
"""The machines with one and two GPUs, of both sets; four have an H200 of an empty socket."""
ALONE = {
    "H100": "2026-11-22/host 1.84, 2026-11-28/second 1.7",
    "H200": "2026-11-28 1.84, 2026-11-28-hosts/first 1.69, 2026-11-28-hosts/second 2.19, "
    "2026-11-28-hosts/third 1.61, 2026-11-29/first 1.63, 2026-11-29/second 1.76, 2026-11-29b/first 2.1, "
    "2026-11-29b/second 2.18, 2026-11-29c/first 1.99",
}
"""The machines without recorded runs."""


def machine(name: str, day: int) -> HostRecord:
    """A machine of a day, of which only the name counts."""
    some: Any = None
    return HostRecord(name, "H200", 1, datetime.date(2026, 11, day), some, some)


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_shipped_profiles_are_written(path: Path) -> None:
    assert path.read_text("utf-8") == files()[path], "run python -m validation.shipped_hosts"


def test_all_records_count_and_each_machine_once() -> None:
    """Two machines have their record in both sets; h200-i has none and the profile of h200-f."""
    names = [record.name for record in host_records()]
    assert len(names) == len(set(names)) == 37
    assert sum(one.beside_runs for one in host_records()) == 26
    assert "h200-i" not in names
    assert {"h200-c", "h200-e", "h100-w", "h200-aa"} <= set(names)


@pytest.mark.parametrize(
    ("name", "factor", "spread"),
    [
        ("h100-1gpu-vm-host", 1.7, 0.28),
        ("h200-1gpu-vm-host", 1.49, 0.39),
        ("h200-8gpu-vm-host", 1.49, 0.39),
        ("dgx-h100-2tb", 1.6, 0.32),
        ("dgx-h200-2tb", 1.24, 0.31),
    ],
)
def test_the_factor_is_the_median_of_all_machines_that_share_a_socket(
    name: str, factor: float, spread: float
) -> None:
    """The mean of the machines of the first day was 0.999, and too fast for every later one.

    Machines without recorded runs widen the spread of a DGX, and do not move its factor.
    """
    host = load_profile("host", name)
    assert isinstance(host, Host)
    assert host.host_factor is not None
    assert (host.host_factor.value, host.host_factor.spread) == (factor, spread)
    gpu = HOSTS[name].gpu
    listed = ", ".join(f"{gpu.lower()}-{one}" for one in FACTORS[gpu].split(", "))
    alone = ", ".join(f"{gpu.lower()}-{one}" for one in ALONE[gpu].split(", "))
    if HOSTS[name].bare_metal:
        assert f"one or two {gpu}: {listed} (validation/measured); spread: " in host.host_factor.source
    else:
        folders = "(validation/measured, docs/measurements)"
        assert f"one or two {gpu}: {alone}, {listed} {folders}" in host.host_factor.source


def test_the_spread_of_a_dgx_holds_eight_of_ten_virtual_machines() -> None:
    """Those that were measured later count, although its factor is not theirs."""
    for name in ("dgx-h100-2tb", "dgx-h200-2tb"):
        stated = host_statements(name)["host_factor"]
        shared = [one for one in host_records() if one.gpu == HOSTS[name].gpu and one.gpus <= 2]
        factors = measured(shared, "host_factor")
        assert stated.spread == pytest.approx(spread_around(stated.value, factors), abs=0.005)
        near = [abs(log(one / stated.value)) <= P90 * stated.spread * 1.02 for one in factors.values()]
        assert 0.8 <= sum(near) / len(near) < 1


def test_products_of_a_rented_machine_are_those_of_machines_that_read_as_fast() -> None:
    """16 threads read 92 to 106 GB/s; a core computes a third of what a desktop's does, which stood there."""
    products = load_platform("h200-1gpu-vm").machine(nodes=1).host.products
    for number in products.deciding:
        assert number.origin == "measured"
    assert 80e9 < products.weights.value * 614.4e9 < 106e9
    assert 5e9 < products.thread.value < 8e9


def test_a_rented_machine_is_half_a_dgx() -> None:
    """16 cores, 128 GiB of which Linux has 126, about 100 GB/s, and half of Adam's rate of a DGX."""
    for gpu, memory, adam in (("h100", 98.5e9, 138.0e9), ("h200", 102.5e9, 143.1e9)):
        rented = load_platform(f"{gpu}-1gpu-vm").machine(nodes=1)
        assert (rented.gpus, rented.host.cpu_optimizer.cores.value) == (1, 16)
        assert rented.host.memory_capacity.value == 131_981_020 * 1024
        assert rented.host.memory_rate == pytest.approx(memory, rel=0.001)
        assert rented.host.cpu_optimizer.limit.value == pytest.approx(adam)
        dgx = load_platform(f"dgx-{gpu}").machine(nodes=1).host
        ratio = rented.host.cpu_optimizer.rate(16) / dgx.cpu_optimizer.rate(56)
        assert 0.5 < ratio < 0.8


def test_a_machine_is_predicted_without_its_record() -> None:
    """Of the H200 machines, one of the faster ones without itself leaves a higher median."""
    host = "host/h200-1gpu-vm-host"
    others = without("h200-q", "h200-1gpu-vm")
    assert "h200-q" not in str(others)
    assert others[host]["host_factor"]["value"] == 1.61
    assert without("h200-4x-d", "dgx-h200")["host/dgx-h200-2tb"]["host_factor"]["value"] == 1.24
    known = without("nobody", "h200-1gpu-vm")
    assert known[host]["host_factor"]["value"] == 1.49
    assert known[host]["pageable"] == host_statements("h200-1gpu-vm-host")["pageable"].data()


def test_recorded_runs_are_predicted_so(measured_folder: Path) -> None:
    """The training of h200-q, on a machine like it, and not on a DGX, which would be 40 % too fast."""
    found = {run.compared.run.name: run.compared for run in compare_measured(measured_folder, "shipped")}
    steps = [step for run in found.values() if (step := run.find("step")) and step.error is not None]
    assert len(steps) == 4
    assert max(abs(step.error or 0.0) for step in steps) < 0.25


@pytest.fixture
def measured_folder(repository: Path, tmp_path: Path) -> Path:
    """The training runs of one machine."""
    folder = tmp_path / "holdout" / "h200-q"
    folder.mkdir(parents=True)
    source = repository / "validation/measured/holdout/h200-q/runs-train.json"
    (folder / "runs-train.json").write_text(source.read_text("utf-8"), encoding="utf-8")
    return tmp_path


# -- medians and spreads --------------------------------------------------------------------------


def test_one_slow_machine_does_not_move_the_median() -> None:
    days = {machine(name, day): value for name, day, value in (("a", 1, 1.0), ("b", 2, 1.1), ("c", 3, 9.0))}
    assert robust(days).value == pytest.approx(1.1)
    assert robust({machine("a", 1): 1.0, machine("b", 1): 4.0}).value == pytest.approx(2.0)


def test_a_machine_is_compared_with_those_of_other_days() -> None:
    """Three machines of a quiet day agree, and say little about the next day."""
    quiet = {machine(name, 1): 1.0 for name in "abc"}
    assert deviations(quiet) == [0.0, 0.0, 0.0]
    assert deviations({**quiet, machine("d", 2): 2.0}) == pytest.approx([0.693] * 4, abs=1e-3)


def test_the_spread_holds_eight_of_ten_machines() -> None:
    """Of five machines of five days, four are at most 10 % away from the others' median, one far."""
    values = {machine(str(day), day): value for day, value in enumerate((1.0, 1.0, 1.0, 1.1, 3.0), start=1)}
    assert robust(values).spread == pytest.approx(0.0953 / 1.2816, rel=1e-3)


def test_the_default_spread_is_that_of_all_machines() -> None:
    """Of both GPUs, each machine relative to those of other days with its GPU: docs/explanations.md."""
    away = []
    for gpu in FACTORS:
        shared = [one for one in host_records() if one.gpu == gpu and one.gpus <= 2 and one.beside_runs]
        away += deviations(measured(shared, "host_factor"))
    assert len(away) == 20
    assert sorted(away)[15] / P90 == pytest.approx(HOST_SPREAD, abs=0.006)


def test_another_machines_numbers_count_once() -> None:
    """h200-g has the rates of Adam of h200-f, because its own record is too short."""
    limits = measured(
        [one for one in host_records() if one.gpu == "H200" and one.gpus == 1], "cpu_optimizer.limit"
    )
    assert [one.name for one in limits] == [
        "h200-2026-11-28-hosts/first",
        "h200-2026-11-29/first",
        "h200-2026-11-29c/first",
        *("h200-f", "h200-o", "h200-q", "h200-u"),
    ]


def test_pinned_copies_of_the_shipped_link_are_those_of_the_machines() -> None:
    """They are one machine's; the median of large ones over 33 machines is within 1 %."""
    link = load_profile("pcie", "gen5")
    assert isinstance(link, Pcie)
    copied = [one for one in host_records() if one.pcie.host_to_device.source.startswith("calibrate micro")]
    assert len(copied) == 33
    for key in ("host_to_device", "device_to_host"):
        tops = {one: float(getattr(one.pcie, key).top) for one in copied}
        assert robust(tops).value == pytest.approx(getattr(link, key).top, rel=0.01)
    points, last = pooled_pageable(host_records())
    assert points[-1] == (1 << 30, pytest.approx(8.306e9, rel=1e-3))
    assert len(last.numbers) == 33


# -- costs and texts ------------------------------------------------------------------------------


def test_a_cost_is_that_of_the_reference_host_times_the_factor() -> None:
    """Models of real size have 1.04 times the cost of the shallow ones that were measured."""
    host = load_platform("dgx-h100").machine(nodes=1).host
    assert host.host_factor is not None
    factor = host.host_factor.value
    shallow = reference_costs()["hook"].value
    assert host.deepspeed.hook.value == pytest.approx(1.04 * shallow * factor, rel=1e-3)
    assert host.training.graph.value == pytest.approx(reference_costs()["graph"].value, rel=1e-3)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("deepspeed.hook", " x 1.04 (models of real size) x 1.6"),
        ("training.backward_call", " x 1.12 (models of real size) x 1.6"),
        ("deepspeed.cold_limit", " x 1.6"),
        ("training.graph", ""),
    ],
)
def test_the_source_of_a_cost_has_all_of_its_factors(key: str, said: str) -> None:
    source = host_statements("dgx-h100-2tb")[key].source
    assert source == f"cost of the reference host{said} (docs/measurements/host-thread.md)"


def test_costs_of_other_programs_are_multiples_of_an_operation() -> None:
    """The medians of two machines under FSDP, and of five under Accelerate; a hook counts as an operation."""
    known = shipped_unmeasured().host
    unit = known.fsdp.inference_operation.value
    fsdp = {key: cost.value / unit for key, cost in known.fsdp if key not in ("ranks", "inference_operation")}
    assert fsdp == pytest.approx({key: one.value for key, one in multiples("fsdp").items()}, rel=1e-3)
    eager = {key: cost.value for key, cost in known.eager if key != "hook"}
    assert eager == pytest.approx({key: one.value for key, one in multiples("eager").items()}, rel=1e-3)
    assert known.eager.hook.value == known.eager.operation.value
    assert [len(one.numbers) for one in multiples("eager").values()] == [5, 5, 2]


def test_new_pages_are_those_of_the_measured_machines() -> None:
    known = shipped_unmeasured().host.new_memory
    for key in ("page_thread", "page_limit"):
        rate = pooled(host_records(), f"fsdp.{key}").value
        assert getattr(known, key).value == pytest.approx(rate, rel=1e-3)


def test_a_machine_is_predicted_without_its_own_costs_of_other_programs() -> None:
    host = without("h200-2x-l", "dgx-h200")["host/dgx-h200-2tb"]
    known = {**host["fsdp"], **host["eager"]}
    only_there = {key for key, one in known.items() if "h200-2x-l" in one["source"]}
    assert only_there == {"gather"}, "the other machine has one GPU, which gathers nothing"
    assert host["fsdp"]["reduce"]["value"] == "225.6 us"


def test_only_named_lines_are_replaced() -> None:
    text = (
        "id: a\nhost_factor: {value: 1}\ndeepspeed:\n  hook: {value: 2}\n  ranks: 1\ntraining:\n  hook: 3\n"
    )
    new = {"deepspeed.hook": Statement("5 us", "s", "2026-11-23", spread=0.1)}
    line = '  hook: {value: 5 us, origin: estimate, source: "s", date: 2026-11-23, spread: 0.1}'
    assert written(text, new) == text.replace("  hook: {value: 2}", line)
    with pytest.raises(ValueError, match=r"lacks training\.graph"):
        written(text, {"training.graph": new["deepspeed.hook"]})
