"""A micro-step's walk: buckets as recorded from real runs, what is gathered, and what began before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simoffload.errors import InputError
from simoffload.models import load_model
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.programs.zero_training import ZeroTraining, ZeroTrainingPlan
from simoffload.strategies.training.micro_step import Bucket, buckets, gathered_peak
from simoffload.strategies.zero.coordinator import Tensor
from simoffload.workload import Training
from tests.strategies.training.make_traces import BUCKET, CHECKPOINTING, MODELS
from tests.strategies.training.mode_cases import CPU, machine, moved, operations, part, plan_of

DATA = Path(__file__).parent / "data"
IN_LAYER = re.compile(r"^(?:model\.decoder|model|transformer)\.(?:layers|h)\.\d+\.")


# -- buckets of real runs ----------------------------------------------------------------------------


def plan_of_record(name: str, how: str) -> ZeroTrainingPlan:
    work = Training(
        kind="training",
        batch_size=1,
        sequence_length=16,
        gradient_checkpointing=how != "whole",
        use_reentrant=how == "reentrant",
    )
    config = {"zero_optimization": {"stage": 3, "reduce_bucket_size": BUCKET}}
    strategy = ZeroTraining(ds_config=DeepSpeedConfig.model_validate(config))
    return strategy.plan(load_model(MODELS[name]), work, machine())


def found_buckets(plan: ZeroTrainingPlan) -> list[list[str]]:
    found = buckets(plan.layered.full, BUCKET)
    return [[tensor.name for tensor in tensors] for tensors in found]


def recorded_buckets(name: str, how: str) -> list[list[str]]:
    lines = (DATA / f"{name}-{how}.txt").read_text().splitlines()
    return [
        [IN_LAYER.sub("", one) for one in line.split()[1:]] for line in lines if line.startswith("bucket ")
    ]


RECORDS = [pytest.param(name, how) for name in MODELS for how in CHECKPOINTING]


@pytest.mark.parametrize(("name", "how"), RECORDS)
def test_gradients_share_buckets_as_recorded(name: str, how: str) -> None:
    found = found_buckets(plan_of_record(name, how))
    assert [sorted(one) for one in found] == [sorted(one) for one in recorded_buckets(name, how)]


@pytest.mark.xfail(strict=True, reason="DeepSpeed sorts a bucket by ds_id, the order of model.parameters()")
@pytest.mark.parametrize("name", [name for name in MODELS if name != "mixtral"])
def test_gradients_leave_a_bucket_in_the_recorded_order(name: str) -> None:
    """It decides which of them fill a swap buffer."""
    assert found_buckets(plan_of_record(name, "whole")) == recorded_buckets(name, "whole")


# -- the rule of a bucket ----------------------------------------------------------------------------


class Seen:
    def __init__(self) -> None:
        self.copied: list[bool] = []
        self.reduced: list[list[Tensor]] = []

    def gradient(self, _tensor: Tensor, /, *, contiguous: bool) -> None:
        self.copied.append(contiguous)

    def reduce(self, tensors: Sequence[Tensor], /) -> None:
        self.reduced.append(list(tensors))


@given(numels=st.lists(st.integers(1, 60), max_size=30), size=st.integers(1, 100))
def test_a_bucket_is_reduced_when_the_next_gradient_finds_no_room(numels: list[int], size: int) -> None:
    tensors = [Tensor(str(index), numel, numel, False, False) for index, numel in enumerate(numels)]
    seen = Seen()
    bucket = Bucket(size, seen.reduce, gradient=seen.gradient)
    for tensor in tensors:
        bucket.add(tensor)
    bucket.flush()
    bucket.flush()
    assert [one for group in seen.reduced for one in group] == tensors
    for index, group in enumerate(seen.reduced):
        held = sum(one.numel for one in group)
        assert held <= size or len(group) == 1
        assert all(held + following[0].numel > size for following in seen.reduced[index + 1 : index + 2])
    assert seen.copied == [one.numel <= size for one in tensors], "what is larger goes by itself, uncopied"


# -- what is gathered --------------------------------------------------------------------------------

LAYER = 4 * 256**2 + 3 * 256 * 512 + 2 * 256
DOWN = 512 * 256
OUTSIDE = 2 * 1000 * 256 + 256
AT_ONCE = {
    "stage": 3,
    "stage3_param_persistence_threshold": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_max_reuse_distance": 0,
    "offload_param": CPU,
    "offload_optimizer": CPU,
}


def gathered(plan: ZeroTrainingPlan, title: str) -> int:
    """[elements] that all ranks together bring to the GPU in a pass, of 16 bit each."""
    if plan.places.ranks > 1:
        return (
            moved(plan, part(plan, title))["all-gather"] * plan.places.ranks // (plan.places.ranks - 1) // 2
        )
    copies = [op.size * times for op, times in operations(plan.schedule(part(plan, title))) if op.stream == 1]
    return sum(copies) // 2


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_without_reuse_every_hook_gathers_what_its_module_owns(ranks: int) -> None:
    """Forward once, backward once; a layer that is computed again is needed twice in backward, all but the
    last projection, with which its backward pass begins and the recomputation ends."""
    for again, backward in ((False, 3 * LAYER), (True, 3 * (2 * LAYER - DOWN))):
        plan = plan_of(AT_ONCE, ranks=ranks, gradient_checkpointing=again)
        assert gathered(plan, "forward") == OUTSIDE + 3 * LAYER
        assert gathered(plan, "backward") == OUTSIDE + backward, "the embedding, too, which needs none"


def test_a_tied_weight_is_gathered_by_both_modules_that_need_it() -> None:
    plan = plan_of(AT_ONCE, ranks=2, model={"tie_word_embeddings": True})
    assert gathered(plan, "forward") == OUTSIDE + 3 * LAYER


def test_what_is_kept_until_backward_is_gathered_once() -> None:
    plan = plan_of({**AT_ONCE, "stage3_max_reuse_distance": 10**9}, ranks=2)
    assert gathered(plan, "forward") == OUTSIDE + 3 * LAYER
    assert gathered(plan, "backward") == 0


def test_persistent_parameters_are_gathered_after_the_step_only() -> None:
    """The seven norms have 256 elements each."""
    plan = plan_of({**AT_ONCE, "stage3_param_persistence_threshold": 256}, ranks=2)
    assert gathered(plan, "forward") == OUTSIDE + 3 * LAYER - 7 * 256
    assert gathered(plan, "optimizer") == 7 * 256


@pytest.mark.parametrize("reuse", [0, 300_000, 10**9])
@pytest.mark.parametrize("bucket", [0, 1, 10**5, 10**7])
def test_both_passes_together_read_what_one_walk_reads(reuse: int, bucket: int) -> None:
    """Backward is written from where forward left off, although each is a schedule of its own."""
    zero = {
        **AT_ONCE,
        "stage3_max_reuse_distance": reuse,
        "stage3_prefetch_bucket_size": bucket,
        "offload_param": {"device": "nvme", "buffer_count": 60, "buffer_size": 3_000_000, "max_in_cpu": 0},
    }
    model: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 2048, "vocab_size": 600}
    plan = plan_of(zero, model=model, gradient_checkpointing=True, sequence_length=8)
    written = [
        op.label
        for title in ("forward", "backward")
        for block in plan.schedule(part(plan, title)).blocks
        for _ in range(block.repeat)
        for op in block.ops
        if op.kind == "read"
    ]
    peak = gathered_peak(plan.layered.full, plan.state)
    assert written == [tensor.name for tensor in peak.read]
    assert peak.gathered <= plan.model.num_parameters


@pytest.mark.xfail(strict=True, reason="the coordinator reads a tensor once that DeepSpeed asks for twice")
def test_a_tensor_that_is_needed_twice_in_what_is_read_ahead_stops_deepspeed() -> None:
    """The output layer is the last tensor of forward and the first of backward. DeepSpeed's
    ``__prefetch_nvme_param_partitions`` puts it on its list twice and stops: "param 20 already assigned swap
    buffer id" (0.19.8, two ranks on the CPU, this very configuration)."""
    zero = {
        "stage": 3,
        "offload_param": {"device": "nvme", "buffer_size": 3_000_000, "buffer_count": 20, "max_in_cpu": 0},
        "offload_optimizer": CPU,
        "stage3_prefetch_bucket_size": 1_000_000,
        "stage3_max_reuse_distance": 3_000_000,
        "stage3_param_persistence_threshold": 0,
    }
    model = {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "vocab_size": 3000,
    }
    plan = plan_of(zero, ranks=2, model=model, sequence_length=16)
    with pytest.raises(InputError, match="already assigned swap buffer"):
        gathered_peak(plan.layered.full, plan.state)
