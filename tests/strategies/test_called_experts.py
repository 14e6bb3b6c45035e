"""Experts that are modules of their own under ZeRO-3: with leaf modules all are fetched, without them those
that are called."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simoffload.documents import Document
from simoffload.errors import InputError
from simoffload.models import Sequences, load_model
from simoffload.scenario import read_scenario, resolve
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan
from simoffload.strategies.zero.coordinator import CoordinatorSink, Tensor
from simoffload.strategies.zero.replay import hook
from simoffload.strategies.zero.trace import only_called, order_lasts
from tests.calibration.separate_experts import BUCKET, MODEL
from tests.strategies.scenarios import bytes_of

RECORD = json.loads(
    (Path(__file__).parents[1] / "calibration" / "data" / "separate_experts.json").read_text()
)
RUNS = {(run["name"], run["leaf"]): run["passes"] for run in RECORD["runs"]}
ROUTING = {
    "every expert in every pass": {"zipf": 0},
    "the same two in every pass": {"frequencies": [1, 1, 0, 0]},
    "other experts in every pass": {"zipf": 0},
}


def small(name: str, *, leaf: bool) -> ZeroInferencePlan:
    """Return the plan of the recorded model; with 200 sequences all experts are called."""
    zero = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "stage3_prefetch_bucket_size": BUCKET,
        "stage3_max_reuse_distance": 0,
        "leaf_module": {"classes": ["MixtralSparseMoeBlock"] if leaf else []},
    }
    tree = {
        "name": name,
        "model": {"family": "mixtral", "expert_layout": "separate", "routing": ROUTING[name], **MODEL},
        "platform": "dgx-a100",
        "workload": {
            "kind": "inference",
            "batch_size": 200 if name.startswith("every") else 1,
            "prompt_length": 4,
            "output_length": 2,
        },
        "strategy": {
            "kind": "deepspeed",
            "weights": "dram",
            "deepspeed_version": RECORD["deepspeed"],
            "ds_config": {"zero_optimization": zero},
        },
    }
    plan = resolve(Document("", tree)).plan()
    assert isinstance(plan, ZeroInferencePlan)
    return plan


def gathers(plan: ZeroInferencePlan, *, first: bool) -> list[list[str]]:
    """Return the tensors of each gather of a decode step."""
    found: list[list[str]] = []

    class Sink(CoordinatorSink):
        def gather(self, _handle: int, tensors: Any, /, *, prefetch: bool) -> None:  # noqa: ARG002
            found.append(names(tensors))

    layered = plan.called(plan.forward("decode 1", 1, 5)).layered
    warm = plan.order_lasts and not first
    coordinator = layered.full.coordinator(layered.fetching, layered.ranks, Sink(), warm=warm)
    for event in layered.full.trace.forward:
        hook(event, coordinator, layered.full.parameters)
    return found


def names(tensors: list[Tensor]) -> list[str]:
    return sorted(one.name.removesuffix(".weight") for one in tensors)


def recorded(one: dict[str, Any]) -> list[list[str]]:
    """Return the gathers of a recorded pass with the simulator's names, which are relative to a layer."""
    return [
        sorted(
            re.sub(r"^model\.layers\.\d+\.", "", name).replace("mlp.", "block_sparse_moe.") for name in names
        )
        for names in one["gathers"]
    ]


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("name", ["every expert in every pass", "the same two in every pass"])
def test_the_tensors_of_each_gather_are_those_of_a_real_run(name: str, leaf: bool) -> None:
    """DeepSpeed 0.19.8 on a CPU: the first pass, and the later ones, which prefetch."""
    plan = small(name, leaf=leaf)
    first, *later = RUNS[name, leaf]
    assert (first["mode"], {one["mode"] for one in later}) == ("RECORD", {"COMPLETE"})
    assert plan.order_lasts
    if leaf:  # the tensors of one module come in the order of a Python set
        assert [len(one) for one in gathers(plan, first=True)] == [len(one) for one in first["gathers"]]
    else:
        assert gathers(plan, first=True) == recorded(first)
    for one in later:
        assert gathers(plan, first=False) == recorded(one)


def test_other_experts_in_each_pass_end_the_recorded_order() -> None:
    """One pass in two records without prefetching, as is simulated; the other fetches some in vain."""
    plan = small("other experts in every pass", leaf=False)
    passes = RUNS["other experts in every pass", False]
    assert [one["mode"] for one in passes] == ["RECORD", "INVALID", "RECORD", "INVALID"]
    assert not plan.order_lasts
    simulated = gathers(plan, first=False)
    for one in passes:
        if one["mode"] == "RECORD":
            assert len(one["gathers"]) == len(simulated)
            assert {len(names) for names in one["gathers"]} == {1}
        else:
            assert sum(map(len, one["gathers"])) > len(simulated)


def test_as_leaf_modules_they_come_together_whatever_is_chosen() -> None:
    plan = small("other experts in every pass", leaf=True)
    assert plan.order_lasts
    later = RUNS["other experts in every pass", True][1:]
    assert all(recorded(one) == gathers(plan, first=False) for one in later)


# -- Mixtral 8x7B ---------------------------------------------------------------------------------------

OLD, NEW = "strategy.deepspeed_version=0.17.6", "strategy.deepspeed_version=0.19.8"
NO_LEAF = "strategy.ds_config.zero_optimization.leaf_module={classes: []}"
ALL = "model.expert_calls=all"


def mixtral(batch: int, *overrides: str) -> ZeroInferencePlan:
    changes = (
        "model.name=mixtral-8x7b",
        "platform=dgx-h100",
        "strategy.weights=dram",
        f"workload.batch_size={batch}",
        "workload.prompt_length=64",
    )
    plan = read_scenario("deepnvme/mixtral-8x22b", overrides=(*changes, *overrides)).plan()
    assert isinstance(plan, ZeroInferencePlan)
    return plan


def copied(plan: ZeroInferencePlan, new_tokens: int = 1) -> int:
    """Return the bytes that one pass copies to the GPU."""
    schedule = plan.schedule(plan.forward("pass", new_tokens, 64 + new_tokens))
    return bytes_of(schedule, "copy")


def test_one_token_fetches_two_of_eight_experts() -> None:
    plan, whole = mixtral(1, OLD), mixtral(1, OLD, ALL)
    expert, norms = 3 * 4096 * 14336 * 2, 65 * 4096 * 2
    # Without a recorded order the tensors that stay on the GPU are released and fetched again, too.
    assert copied(whole) - copied(plan) == 32 * 6 * expert - norms
    assert copied(plan, new_tokens=64) == copied(whole) + norms


@pytest.mark.parametrize("overrides", [(OLD, ALL), (NEW,), (OLD, "model.expert_layout=fused")], ids=str)
def test_all_are_fetched_where_all_are_called_or_come_together(overrides: tuple[str, ...]) -> None:
    assert copied(mixtral(1, *overrides)) == copied(mixtral(200, OLD))


def test_bytes_between_grow_with_the_expected_number_of_experts() -> None:
    expert, share = 3 * 4096 * 14336 * 2, 1 - 0.75**4
    fewer = copied(mixtral(200, OLD)) - copied(mixtral(4, OLD))
    assert fewer == pytest.approx(32 * 8 * (1 - share) * expert, rel=0.005)  # whole experts, whole layers


def test_the_work_of_the_gpu_is_that_of_the_called_experts() -> None:
    """Two of eight experts for one token: a quarter of the kernels' time of the experts, and no more."""
    plan, whole = mixtral(1, OLD), mixtral(1, OLD, ALL)
    called_s, all_s = (sum(one.durations(one.forward("decode 1", 1, 65))) for one in (plan, whole))
    assert called_s < all_s


def test_a_leaf_module_takes_the_memory_of_the_whole_block() -> None:
    block = 8 * 3 * 4096 * 14336 * 2

    def gathered(plan: ZeroInferencePlan) -> int:
        return next(term.size for term in plan.held if term.name == "gathered parameters, peak")

    assert gathered(mixtral(1, NEW)) >= block > 3 * gathered(mixtral(1, OLD))


def test_a_leaf_module_needs_a_swap_buffer_for_each_tensor() -> None:
    """24 matrices of eight experts at once; alone a matrix needs one of the ten buffers."""
    assert mixtral(1, OLD, "strategy.weights=raid").order_lasts is False
    with pytest.raises(InputError, match=r"buffer_count: DeepSpeed would stop here: Not enough buffers \d+ "):
        mixtral(1, NEW, "strategy.weights=raid")


def test_several_ranks_call_different_experts_and_are_refused() -> None:
    with pytest.raises(InputError, match=r"strategy\.ranks: 2 ranks cannot run separate experts"):
        mixtral(1, OLD, "strategy.ranks=2")
    for overrides in ((NEW,), (OLD, ALL), (OLD, "model.expert_layout=fused")):
        assert mixtral(1, *overrides, "strategy.ranks=2").placement.ranks == 2
    assert mixtral(200, OLD, "strategy.ranks=2").order_lasts


def test_the_order_lasts_once_every_expert_is_called() -> None:
    model = load_model({"name": "mixtral-8x7b", "expert_layout": "separate"})
    assert [order_lasts(model, tokens) for tokens in (1, 16, 24, 64)] == [False, False, True, True]
    assert only_called(model, 64) is model
    one = only_called(model, 1)
    assert one.touched_share(one.layers[0][-1], 1) == 1.0


def test_sequences_of_a_mixture_call_the_experts_of_all_their_tokens() -> None:
    plan = mixtral(1, OLD)
    alone = plan.step((Sequences(1, 1, 65),)).schedule({})
    both = plan.step((Sequences(1, 1, 65), Sequences(1, 64, 64))).schedule({})
    assert sum(len(one.ops) for one in alone.blocks) < sum(len(one.ops) * one.repeat for one in both.blocks)


@pytest.mark.parametrize(
    ("leaf_module", "told"),
    [
        ("{classes: []}", ""),
        ("{classes: MixtralSparseMoeBlock}", ""),
        ("{name_suffixes: block_sparse_moe}", ""),
        ("{names: [model.layers.0.block_sparse_moe]}", "block_sparse_moe not modelled"),
        ("{classes: [MyBlock]}", "classes: MyBlock not modelled"),
    ],
)
def test_leaf_modules_of_ds_config(leaf_module: str, told: str) -> None:
    plan = mixtral(200, NEW, f"strategy.ds_config.zero_optimization.leaf_module={leaf_module}")
    about = [one for one in plan.warnings if "leaf" in one]
    assert [told in one for one in about] == ([True] if told else [])


def test_a_version_without_the_key_is_told() -> None:
    plan = mixtral(1, OLD, "strategy.ds_config.zero_optimization.leaf_module={name_suffixes: sparse_moe}")
    assert any("set_z3_leaf_modules" in one for one in plan.warnings)
    assert copied(plan) == copied(mixtral(1, NEW))
    with pytest.raises(InputError, match=r"leaf_module\.name_sufixes.*DeepSpeed stops"):
        mixtral(1, NEW, "strategy.ds_config.zero_optimization.leaf_module={name_sufixes: mlp}")
