"""Every shipped platform runs a small model; one with unified memory counts its memory once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from simoffload.hardware import list_profiles
from simoffload.results import InferenceResult
from simoffload.scenario import LoadedScenario, read_scenario
from simoffload.simulation import fit, simulate

GIB = 2**30
PLATFORMS = [one.id for one in list_profiles("platform")]


def resident(folder: Path, platform: str, model: str, **changes: Any) -> LoadedScenario:
    work = {"kind": "inference", "batch_size": 1, "prompt_length": 8, "output_length": 3}
    path = folder / "s.yaml"
    tree = {
        "name": "s",
        "model": {"name": model, "dtype": "float16"},
        "platform": platform,
        "workload": work,
        "strategy": {"kind": "transformers"},
    }
    path.write_text(yaml.safe_dump(tree | changes))
    return read_scenario(path)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_platform_runs_a_small_resident_model(tmp_path: Path, platform: str) -> None:
    scenario = resident(tmp_path, platform, "opt-1.3b")
    result = simulate(scenario)
    assert isinstance(result, InferenceResult)
    assert result.fits
    assert result.tpot_s is not None
    weights = scenario.model.weight_bytes - 2 * 50_272 * 2_048  # a lower bound: the embedding is not all read
    assert result.tpot_s > weights / scenario.machine.accelerator.hbm_bandwidth.value


def test_unified_memory_counts_weights_and_system_once(tmp_path: Path) -> None:
    scenario = resident(tmp_path, "dgx-spark", "llama-3.1-8b")
    (use,) = fit(scenario).capacity
    assert (use.tier, use.scope, use.capacity) == ("dram", "per host", round(119.61 * GIB))
    sizes = {term.name: term.size for term in use.terms}
    assert sizes["weights"] == scenario.model.weight_bytes
    assert sizes["operating system and processes"] == scenario.machine.host.reserved_bytes
    assert sizes["CUDA context and workspace"] == scenario.machine.accelerator.reserved_bytes
    assert use.needed == sum(sizes.values())


def test_weights_that_would_fit_alone_do_not_fit_in_unified_memory(tmp_path: Path) -> None:
    """15 GiB of weights fit in 20 GiB, but not beside the 13 GiB of the system."""
    changed = {"host/dgx-spark-128gb": {"memory_capacity": "20 GiB"}}
    scenario = resident(tmp_path, "dgx-spark", "llama-3.1-8b", profiles=changed)
    assert scenario.model.weight_bytes < 20 * GIB
    result = fit(scenario)
    assert [(use.tier, use.fits) for use in result.capacity] == [("dram", False)]


def test_offloading_to_unified_memory_frees_nothing(tmp_path: Path) -> None:
    offloaded = {"kind": "deepspeed", "weights": "dram"}
    (whole,) = fit(resident(tmp_path, "dgx-spark", "llama-3.1-8b")).capacity
    (parts,) = fit(resident(tmp_path, "dgx-spark", "llama-3.1-8b", strategy=offloaded)).capacity
    assert parts.needed > whole.needed


def test_decode_in_unified_memory_takes_the_time_of_its_bytes(tmp_path: Path) -> None:
    """Weights without the input embedding, at the share of 273 GB/s that kernels reach."""
    scenario = resident(tmp_path, "dgx-spark", "llama-3.1-8b")
    result = simulate(scenario)
    assert isinstance(result, InferenceResult)
    embedding = 2 * 128_256 * 4_096
    ideal = (scenario.model.weight_bytes - embedding) / scenario.machine.accelerator.hbm_rate
    assert result.tpot_s == pytest.approx(ideal, rel=0.12)
    assert result.tpot_s is not None
    assert result.tpot_s > ideal
