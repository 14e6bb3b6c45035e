"""PyTorch alone on one GPU: the precision of weights, AdamW, and memory beside that of measured runs."""

import gzip
import json
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

import simoffload as so
from simoffload.documents import Document
from simoffload.scenario.loading import LoadedScenario, resolve

RECORDS = Path(__file__).parents[3] / "docs" / "measurements" / "h200-2026-11-29c"


def recorded(name: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(gzip.decompress((RECORDS / f"{name}.json.gz").read_bytes()))[
        "runs"
    ]
    return runs


def as_run(run: dict[str, Any], optim: str = "adamw_torch") -> LoadedScenario:
    """Return the scenario of a recorded run."""
    trained = run["trained"]
    more: dict[str, Any] = {"mixed_precision": trained.endswith("autocast")}
    if trained.startswith("adapters"):
        more["lora"] = {"r": 16, "autocast_adapter_dtype": "float32" in trained}
    sizes = {key: run[key] for key in ("model", "layers", "batch", "length", "checkpointing")}
    return scenario(optim=optim, **sizes, **more)


def scenario(batch: int = 1, length: int = 4096, layers: int = 4, **strategy: Any) -> LoadedScenario:
    model = {"name": strategy.pop("model", "llama-2-7b"), "num_hidden_layers": layers, "dtype": "bfloat16"}
    work = {"kind": "training", "batch_size": batch, "sequence_length": length}
    work |= {"gradient_checkpointing": strategy.pop("checkpointing", True)}
    work |= {"gradient_accumulation_steps": strategy.pop("accumulation", 1)}
    data = {"name": "x", "platform": strategy.pop("platform", "h200-1gpu-vm"), "workload": work}
    return resolve(Document("", {**data, "model": model, "strategy": {"kind": "transformers", **strategy}}))


def needed(loaded: LoadedScenario) -> int:
    """Return the need of GPU memory [B] without CUDA's context."""
    stages: dict[str, int] = {}
    for one in loaded.plan().held:
        if one.tier == "hbm" and not one.name.startswith("CUDA"):
            stages[one.stage] = stages.get(one.stage, 0) + one.size
    return max(stages.values())


def states(loaded: LoadedScenario) -> dict[str, int]:
    found = loaded.plan().held
    return {one.name: one.size for one in found if (one.tier, one.stage) == ("hbm", "optimizer step")}


def test_states_have_the_type_of_the_weights() -> None:
    for mixed, element in ((True, 4), (False, 2)):
        loaded = scenario(mixed_precision=mixed, optim="adamw_torch")
        numel = loaded.model.num_parameters
        found = states(loaded)
        assert found["parameters"] == found["gradients"] == element * numel
        assert found["optimizer moments"] == 2 * element * numel
        assert found["temporaries of AdamW"] == element * numel
        assert not found["master weights"]
    assert not states(scenario())["temporaries of AdamW"], "one kernel has none"


def test_an_update_takes_its_passes_at_the_rate_of_its_kernels() -> None:
    """21 passes (decay 2, moments 3 + 2 + 4, root 2, two sums 4, update 4), or 7 in one kernel."""
    for optim, mixed, passes, share in (
        ("adamw_torch", True, 21, 0.876),
        ("adamw_torch", False, 21, 0.68),
        ("adamw_torch_fused", True, 7, 0.71),
        ("adamw_torch_fused", False, 7, 0.465),
    ):
        loaded = scenario(optim=optim, mixed_precision=mixed)
        size = passes * (4 if mixed else 2) * loaded.model.num_parameters
        seconds = size / share / loaded.machine.accelerator.hbm_rate
        assert so.simulate(loaded).optimizer_s == pytest.approx(seconds, rel=0.02)


def test_autocast_casts_weights_in_each_pass_and_gradients_back() -> None:
    """6 B an element of a matrix: in forward, in the recomputation, and for gradients of all weights."""
    pure, mixed = (so.simulate(scenario(mixed_precision=one)) for one in (False, True))
    loaded = scenario()
    rate = loaded.machine.accelerator.hbm_rate
    numel = loaded.model.num_parameters
    matrices = numel - 32000 * 4096 - 9 * 4096
    assert mixed.forward_s - pure.forward_s == pytest.approx(6 * matrices / rate, rel=0.05)
    layers = matrices - 32000 * 4096
    assert mixed.backward_s - pure.backward_s == pytest.approx(6 * (numel + layers) / rate, rel=0.05)


def test_later_micro_steps_add_gradients_to_those_that_are_there() -> None:
    one, four = (scenario(mixed_precision=False, accumulation=count) for count in (1, 4))
    times = [so.simulate(loaded).backward_s or 0.0 for loaded in (one, four)]
    added = 3 * 3 * 2 * one.model.num_parameters / one.machine.accelerator.hbm_rate
    assert times[1] - 4 * times[0] == pytest.approx(added, rel=0.05)
    assert needed(four) > needed(one), "gradients of earlier micro-steps stay beside activations"


def test_memory_is_within_two_percent_of_measured_runs() -> None:
    """30 runs on two H200, 14 of them held out; their peaks exclude CUDA's context."""
    for run in recorded("eager-steps") + recorded("eager-autocast"):
        assert needed(as_run(run)) == pytest.approx(run["memory"], rel=0.02), run["name"]


def test_steps_of_adapters_under_autocast_are_those_of_measured_runs() -> None:
    """All held out, on a machine whose host was not measured."""
    errors = []
    for run in recorded("eager-autocast"):
        for optim, steps in zip(("adamw_torch", "adamw_torch_fused"), run["steps"].values(), strict=True):
            result = so.simulate(as_run(run, optim))
            step, forward = (median(one[part] for one in steps[2:]) for part in ("step", "forward"))
            assert result.forward_s == pytest.approx(forward, rel=0.04), run["name"]
            low, high = result.intervals()["step_s"]
            assert low < step < high
            errors.append(abs((result.step_s or 0.0) / step - 1))
    assert mean(errors) < 0.05
    assert max(errors) < 0.1


def test_several_gpus_have_buckets_of_all_gradients() -> None:
    """DDP's ``gradient_as_bucket_view`` is off by default."""
    one, two = (scenario(ranks=ranks, platform="dgx-h200") for ranks in (1, 2))
    assert needed(two) - needed(one) == 4 * one.model.num_parameters
