"""A program from outside of the package whose CPU computes, with the hook that llama.cpp has."""

from __future__ import annotations

from fractions import Fraction
from math import hypot
from pathlib import Path
from typing import Literal

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.strategies import register, registry
from simoffload.strategies.authoring import (
    ForwardPass,
    Home,
    Homes,
    HookedPlan,
    HookedStrategy,
    Machine,
    ModelShape,
    Module,
)
from simoffload.strategies.hooks.on_cpu import CpuSettings, OnCpu
from simoffload.strategies.passes.pass_writer import PassWriter

SCENARIO = """\
name: networks on the CPU
model: {name: llama-3.1-8b, dtype: float16}
platform: rtx-4090-desktop
workload: {batch_size: 1, prompt_length: 8, output_length: 4}
strategy: {kind: cpu_networks}
"""


def on_cpu(layer: int, module: Module) -> bool:
    return module.kind == "embedding" or (layer >= 0 and module.name.startswith("mlp."))


class CpuNetworks(HookedStrategy):
    """The CPU computes embeddings and all feed-forward networks, the GPU the rest."""

    kind: Literal["cpu_networks"] = "cpu_networks"
    ranks: Literal[1] = 1

    def homes(self, model: ModelShape, _machine: Machine) -> Homes:
        return Homes(model, lambda layer, one: Home("dram") if on_cpu(layer, one) else Home())

    def hooks(self, plan: HookedPlan, _forward: ForwardPass) -> tuple[OnCpu]:
        model = plan.model
        parts = (*enumerate(model.layers), (-1, (*model.modules_before, *model.modules_after)))
        shares = [{one.name: Fraction(1) for one in part if on_cpu(at, one)} for at, part in parts]
        settings = CpuSettings(threads=8, cores=8, least=None, pinned=False)
        return (OnCpu(model, shares, settings),)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(registry, "registered", dict(registry.registered))
    monkeypatch.setattr(PassWriter, "verify", True)
    register(CpuNetworks)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    return tmp_path


def test_each_token_reads_the_networks_at_the_rate_of_eight_threads_and_the_memory() -> None:
    """Three products of 4,096 x 14,336 in 16 bits in each of 32 layers, for which all threads meet twice
    each, and once for the activation; hidden states go there and back once a layer."""
    scenario = so.load_scenario("s.yaml")
    host = scenario.machine.host
    products, memory = host.products, host.memory_bandwidth.value
    slowness = hypot(1 / (8 * products.thread.value), 1 / (products.weights.value * memory))
    read = 32 * 3 * 4096 * 14336 * 2 * slowness
    result = so.simulate(scenario)
    assert result.step is not None
    busy = {one.cause_text: one.busy_s for one in result.step.shares}
    assert busy["CPU compute"] == pytest.approx(read + 32 * 7 * products.operation.value, rel=0.01)
    switch = products.switch.value
    assert busy["GPU to host"] == pytest.approx(32 * switch, rel=0.05)
    assert busy["host to GPU"] == pytest.approx((33 + 5) * switch, rel=0.05)  # the embeddings, five inputs


def test_memory_is_that_of_the_homes() -> None:
    plan = so.load_scenario("s.yaml").plan()
    networks, embeddings = 32 * 3 * 4096 * 14336 * 2, 128256 * 4096 * 2
    held = {(one.tier, one.name): one.size for one in plan.held}
    assert held["dram", "weights"] == networks + embeddings
    assert held["hbm", "weights"] == plan.model.weight_bytes - networks - embeddings


@pytest.mark.parametrize("command", ["run", "fit", "advise", "check"])
def test_every_command_knows_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "s.yaml"]) == 0
    assert "Traceback" not in capsys.readouterr().err
