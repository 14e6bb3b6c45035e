"""The host thread of shipped machines is that of the reference host times the factor of measured machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload.calibration.reference import reference_costs
from simoffload.hardware import load_platform
from validation.shipped_hosts import HOSTS, host_text, measured_factor, pooled_factor

DAY = "2026-11-22"


@pytest.mark.parametrize("name", HOSTS)
def test_shipped_hosts_are_written(name: str, repository: Path) -> None:
    text = (repository / "hardware_profiles" / "host" / f"{name}.yaml").read_text("utf-8")
    assert text == host_text(text, measured_factor(HOSTS[name])), "run python -m validation.shipped_hosts"


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
        ("hook", " x 1.04 (models of real size) x 1.52"),
        ("backward_call", " x 1.12 (models of real size) x 1.52"),
        ("cold_limit", " x 1.52"),
        ("graph", ""),
    ],
)
def test_the_source_of_a_cost_has_all_of_its_factors(key: str, said: str) -> None:
    text = host_text(f"  {key}: 1\n", pooled_factor({"a": (1.52, 0.1)}, DAY))
    assert f'"cost of the reference host{said} (docs/measurements/host-thread.md)"' in text


def test_factors_are_pooled_by_their_logarithms() -> None:
    pooled = pooled_factor({"a": (1.0, 0.3), "b": (4.0, 0.4)}, DAY)
    assert pooled.value == 2.0
    assert pooled.spread == pytest.approx((0.693**2 + (0.09 + 0.16) / 2) ** 0.5, abs=0.01)
    assert "a 1, b 4" in pooled.source


def test_a_few_quiet_machines_do_not_make_the_next_one_certain() -> None:
    assert pooled_factor({"a": (1.0, 0.05), "b": (1.02, 0.05)}, DAY).spread == 0.24
