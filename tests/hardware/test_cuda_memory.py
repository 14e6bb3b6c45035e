"""Memory of GPUs: what CUDA has, not nvidia-smi's figure, and a warning where nearly all of it is needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.documents import parse_yaml, yaml_text
from simoffload.hardware import Accelerator, list_profiles, load_profile
from simoffload.scenario import LoadedScenario, resolve

MIB, GIB = 1 << 20, 1 << 30
CUDA = {"h100-sxm": 79.18, "h200-sxm": 139.8, "rtx-4090": 23.52, "mi300x": 191.69}
"""[GiB] of ``total_memory`` in PyTorch: the first two as recorded in validation/measured."""


@pytest.mark.parametrize("name", CUDA)
def test_capacity_is_that_of_cuda(name: str) -> None:
    gpu = load_profile("accelerator", name)
    assert isinstance(gpu, Accelerator)
    assert gpu.hbm_capacity is not None
    assert gpu.hbm_capacity.value == pytest.approx(CUDA[name] * GIB, rel=0.001)


def test_every_gpu_states_how_sure_its_capacity_is() -> None:
    """None has the figure of nvidia-smi, which its source mentions as another number."""
    for profile in list_profiles("accelerator"):
        gpu = load_profile("accelerator", profile.id)
        assert isinstance(gpu, Accelerator)
        if gpu.hbm_capacity is not None:
            assert gpu.hbm_capacity.spread is not None, gpu.id
            shown = [int(one) for one in re.findall(r"(\d+) MiB", gpu.hbm_capacity.source)]
            assert all(gpu.hbm_capacity.value < size * MIB for size in shown), gpu.id


def scenario(layers: int) -> LoadedScenario:
    """Weights that leave little of an H100: 1 GiB in each layer."""
    text: dict[str, Any] = {
        "name": "narrow",
        "model": {"name": "llama-2-7b", "num_hidden_layers": layers},
        "platform": "dgx-h100",
        "workload": {"batch_size": 1, "prompt_length": 8, "output_length": 2},
        "strategy": {"kind": "transformers", "ranks": 1},
    }
    return resolve(parse_yaml(yaml_text(text), name="s.yaml"))


def test_little_free_memory_is_told_in_every_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = None
    for layers in range(170, 220):
        use = so.fit(scenario(layers)).capacity[0]
        if not use.fits:
            break
        found = layers, use
    assert found is not None
    layers, use = found
    assert 0 < use.headroom < 0.02 * use.capacity
    words = f"hbm fits with {use.headroom / MIB:,.0f} MiB free per GPU"
    (warning,) = so.fit(scenario(layers)).warnings
    assert warning.startswith(words)
    path = tmp_path / "s.yaml"
    path.write_text(yaml_text(scenario(layers).document.data))
    for command in ("fit", "run", "check"):
        assert main([command, str(path)]) == 0
        printed = capsys.readouterr()
        assert words in " ".join((printed.out + printed.err).split()), command
    assert not so.fit(scenario(layers - 10)).warnings


def test_what_fits_only_by_nvidia_smi_does_not_fit() -> None:
    """A layer is smaller than the 480 MiB by which the two figures differ."""
    lacking = next(use for n in range(170, 220) if not (use := so.fit(scenario(n)).capacity[0]).fits)
    assert lacking.needed <= 81559 * MIB
