"""A scenario on another tier keeps the kind of its strategy, or tells why the tier is not possible."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simoffload.cli.sources import find_profile
from simoffload.documents import parse_json
from simoffload.errors import InputError, PlacementError
from simoffload.planning.compare import compare
from simoffload.planning.targets import Misplaced, on_targets
from simoffload.scenario import LoadedScenario, canonical_target, read_scenario, resolve
from simoffload.simulation import simulate
from simoffload.strategies import strategies
from simoffload.strategies.base import Placement, moving, placements_of, tier_paths
from tests.report.conftest import compare_text

INFERENCE = {"batch_size": 1, "prompt_length": 32, "output_length": 2}
TRAINING = {"kind": "training", "batch_size": 1, "sequence_length": 128}
SAVED = {"kind": "checkpoint"}
OFFLOADED = {
    "zero_optimization": {
        "stage": 3,
        "offload_param": {"device": "cpu", "buffer_count": 8},
        "offload_optimizer": {"device": "nvme", "buffer_count": 5},
    }
}
LORA = {"r": 8, "target_modules": ["q_proj", "v_proj"]}
STRATEGIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "deepspeed": (INFERENCE, {"kind": "deepspeed", "ranks": 2, "weights": "cpu"}),
    "deepspeed, by default": (INFERENCE, {"ranks": 2, "ds_config": OFFLOADED}),
    "transformers": (INFERENCE, {"kind": "transformers", "ranks": 2}),
    "deepspeed, training": (TRAINING, {"kind": "deepspeed", "ranks": 2, "optimizer": "cpu"}),
    "deepspeed, training, ds_config": (TRAINING, {"ranks": 2, "ds_config": OFFLOADED}),
    "deepspeed, LoRA": (TRAINING, {"kind": "deepspeed", "ranks": 2, "lora": LORA}),
    "fsdp": (TRAINING, {"kind": "fsdp", "ranks": 2, "limit_all_gathers": False}),
    "fsdp, offloaded": (TRAINING, {"kind": "fsdp", "ranks": 2, "cpu_offload": True}),
    "fsdp, LoRA": (TRAINING, {"kind": "fsdp", "ranks": 2, "lora": LORA}),
    "transformers, training": (TRAINING, {"kind": "transformers", "ranks": 2}),
    "checkpoint": (SAVED, {"kind": "checkpoint", "ranks": 2, "tier": "raid"}),
}
TARGETS = ("resident", "gpu", "cpu", "raid", "ai400x2", "hbm+hbm", "dram+dram", "hbm+dram", "raid+raid")


def scenario(name: str) -> LoadedScenario:
    workload, strategy = STRATEGIES[name]
    data = {"name": name, "model": "opt-125m", "platform": "dgx-a100"}
    return read(data | {"workload": workload, "strategy": strategy})


def read(data: dict[str, Any]) -> LoadedScenario:
    return resolve(parse_json(json.dumps(data), name="test.json"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_elsewhere_the_kind_stays_and_the_document_says_the_same(name: str, target: str) -> None:
    before = scenario(name)
    try:
        moved = before.on(target)
    except PlacementError as error:
        (problem,) = error.problems
        assert problem.key == "strategy.kind"
        kind = before.scenario.strategy.kind
        shown = target.replace("gpu", "hbm").replace("cpu", "dram")
        assert problem.message.startswith(f'{kind} cannot be on "{shown}": ')
        return
    kept = moved.scenario.strategy.kind == before.scenario.strategy.kind
    assert kept or (target, moved.scenario.strategy.kind) == ("resident", "transformers")
    again = read(moved.document.data)
    assert again.scenario == moved.scenario
    assert (again.places, bool(moved.warnings)) == (moved.places, not kept)
    try:
        result = simulate(moved)
    except InputError as error:  # DeepSpeed takes parameters to storage with the optimizer only
        with pytest.raises(InputError, match=error.problems[0].message[:20]):
            simulate(again)
        return
    same = simulate(again)
    assert [one.time_ps for one in result.passes] == [one.time_ps for one in same.passes]
    assert result.capacity == same.capacity
    assert result.metrics() == same.metrics()


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_placement_is_edits_of_the_document_and_all_others_are_refused(name: str) -> None:
    """A strategy accepts the placements that it lists, without changing its kind, and refuses others."""
    before = scenario(name)
    strategy, machine = before.scenario.strategy, before.machine
    listed = placements_of(strategy, machine).possible
    named = {*listed, *(Placement(one.weights) for one in listed)}
    tiers = tuple(machine.tiers)
    for placement in [Placement(one, other) for one in tiers for other in (None, *tiers)]:
        if placement not in named:
            with pytest.raises(PlacementError, match="cannot be on"):
                moving(strategy, placement, machine)
            continue
        edits = moving(strategy, placement, machine)
        assert all(edit.path[0] == "strategy" and "kind" not in edit.path for edit in edits)
        moved = before.on(str(placement))
        assert moved.scenario == before.edited(*edits).scenario == read(moved.document.data).scenario
        assert moved.scenario.strategy.kind == strategy.kind
        assert moved.places == (placement.weights, placement.optimizer or moved.places[1])
        assert not moved.warnings


@pytest.mark.parametrize(
    ("name", "possible"),
    [
        ("fsdp", {"resident", "hbm", "dram", "hbm+hbm", "dram+dram"}),
        ("deepspeed, training", set(map(canonical_target, TARGETS))),
        ("deepspeed, LoRA", set(map(canonical_target, TARGETS))),
        ("transformers", {"resident", "hbm", "hbm+hbm"}),
        ("deepspeed", {"resident", "hbm", "dram", "raid", "ai400x2"}),
        ("checkpoint", {"raid", "ai400x2"}),
    ],
)
def test_where_each_strategy_can_be(name: str, possible: set[str]) -> None:
    moved = on_targets(scenario(name), TARGETS)
    assert {target for target, one in moved.items() if not isinstance(one, Misplaced)} == possible


def test_fsdp_is_compared_as_fsdp() -> None:
    """Two steps of FSDP and of nothing else, and one place that it does not have."""
    fsdp = scenario("fsdp")
    found = compare(fsdp, ["dram+dram", "hbm+hbm", "hbm+dram"]).results
    assert {one.provenance.scenario["strategy"]["kind"] for one in found.values()} == {"fsdp"}
    offloaded = simulate(scenario("fsdp").on("cpu"))
    assert found["dram+dram"].metrics() == offloaded.metrics()
    assert found["hbm+hbm"].metrics() == simulate(fsdp).metrics()
    assert found["hbm+dram"].metrics()["step_s"] is None
    (why,) = found["hbm+dram"].refused
    assert "it keeps parameters and optimizer together" in why


def test_refused_rows_are_called_as_they_were_asked_for() -> None:
    found = compare(scenario("fsdp"), ["hbm+dram", "hbm+hbm"]).results
    refused = found["hbm+dram"]
    assert (refused.target, refused.optimizer_target, refused.fits) == ("hbm", "dram", False)
    assert "it keeps parameters and optimizer together" in refused.refused[0]
    text = compare_text(list(found.values()))
    assert re.search(r"\n  hbm +dram .* refused\n", text)
    assert "\n  hbm+dram is refused: " in text


def test_whole_copies_train_the_same_adapters() -> None:
    for name in ("deepspeed, LoRA", "fsdp, LoRA"):
        moved = scenario(name).on("resident").scenario.strategy
        assert (moved.kind, moved.description.trains) == ("transformers", "adapters")
        assert moved.model_dump()["lora"]["target_modules"] == ("q_proj", "v_proj")


def test_resident_is_said_where_the_strategy_was_another() -> None:
    for name in ("deepspeed", "deepspeed, training", "fsdp"):
        (text,) = scenario(name).on("resident").warnings
        assert text.startswith(f"strategy.kind is transformers here, not {name.partition(',')[0]}")
    assert scenario("transformers").on("resident").warnings == ()


@pytest.mark.parametrize("target", ["tape", "hbm+tape", "raid+", "", "hbm+dram+raid"])
def test_what_no_machine_has_is_no_placement(target: str) -> None:
    with pytest.raises(InputError, match="no tier") as caught:
        scenario("fsdp").on(target)
    assert not isinstance(caught.value, PlacementError)


def test_a_platform_file_of_the_same_name_elsewhere_is_not_the_scenarios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path on the command line starts from the current folder, a path in a scenario from its file."""
    for folder, name in (("mine", "dgx-a100"), ("here", "dgx-h100")):
        (tmp_path / folder / "machines").mkdir(parents=True)
        text = find_profile(f"platform/{name}").document.path
        (tmp_path / folder / "machines" / "p.yaml").write_text(Path(text).read_text())
    own = {"name": "own", "model": "opt-125m", "platform": "./machines/p.yaml"}
    data = own | {"workload": INFERENCE, "strategy": {"weights": "cpu"}}
    (tmp_path / "mine" / "s.json").write_text(json.dumps(data))
    monkeypatch.chdir(tmp_path / "here")
    found = on_targets(read_scenario(tmp_path / "mine" / "s.json"), ["./machines/p.yaml:hbm", ":dram"])
    assert [one.machine.platform for one in found.values()] == ["dgx-h100", "dgx-a100"]


CACHE = {"kv_cache.tier": "any", "kv_cache.connector.tier": "any"}


def test_the_types_of_fields_say_which_keys_name_tiers() -> None:
    """Those of the section come before those of the sections in it, which may be left out."""
    found = {one.__name__: dict(tier_paths(one)) for one in strategies()}
    assert found == {
        "Best": {"uses": "any", "weights": "any", "optimizer": "any"},
        "ZeroInference": {"weights": "any", **CACHE},
        "ZeroTraining": {"weights": "any", "optimizer": "any"},
        "Fsdp": {},
        "Accelerate": {"offload_folder": "files", **CACHE},
        "Transformers": CACHE,
        "TransformersTraining": {},
        "Vllm": {"offload_tier": "any", **CACHE},
        "GptFast": CACHE,
        "LlamaCpp": {"file": "files", **CACHE},
        "FlexGen": {"disk": "files"},
        "CheckpointStorage": {"tier": "files", "swap": "files"},
    }
    first = [next(iter(paths)) for paths in found.values() if len(paths) > 2]
    assert first == ["uses", "offload_tier", "weights", "offload_folder", "file"]
