"""What holds for any model, platform and knobs."""

from __future__ import annotations

from functools import cache

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simoffload.engine import execute
from simoffload.errors import InputError
from simoffload.hardware import Machine, load_platform
from simoffload.models import Sequences, load_model
from simoffload.results.attribution import attribute
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.programs.zero_inference import ZeroInference
from simoffload.workload import Inference
from tests.engine.bounds import lower_bound, serial_time
from tests.examples import some

WORK = Inference(batch_size=2, prompt_length=64, output_length=4)
PASSES = (
    ForwardPass("first pass", (Sequences(2, 64, 64),), first=True),
    ForwardPass("prefill", (Sequences(2, 64, 64),)),
    ForwardPass("decode 1", (Sequences(2, 1, 65),)),
)


@cache
def machine(name: str) -> Machine:
    return load_platform(name).machine()


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, object]:
    hidden = draw(st.sampled_from([256, 1024, 4096]))
    family = draw(st.sampled_from(["bloom", "opt", "llama"]))
    shape = {
        "family": family,
        "hidden_size": hidden,
        "num_hidden_layers": draw(st.integers(1, 6)),
        "num_attention_heads": 8,
        "vocab_size": draw(st.sampled_from([1000, 50_000])),
    }
    wide = {"opt": "ffn_dim", "llama": "intermediate_size"}
    return shape | ({wide[family]: 3 * hidden} if family in wide else {})


@st.composite
def plans(draw: st.DrawFn) -> tuple[ZeroInference, Machine]:
    there = machine(draw(st.sampled_from(["dgx-a100", "h100-2nvme", "l40s-workstation", "dgx-2"])))
    zero = {
        "stage3_prefetch_bucket_size": draw(st.sampled_from([0, 1, 10**6, 5 * 10**7, 10**9])),
        "stage3_param_persistence_threshold": draw(st.sampled_from([0, 10**4, 10**6])),
        "stage3_max_live_parameters": draw(st.sampled_from([0, 10**6, 10**9])),
        "stage3_max_reuse_distance": draw(st.sampled_from([0, 10**6, 10**9])),
        "overlap_comm": draw(st.booleans()),
        "offload_param": {
            "pin_memory": draw(st.booleans()),
            "buffer_count": draw(st.sampled_from([3, 12, 40])),
            "buffer_size": 10**9,
        },
    }
    aio = {"queue_depth": draw(st.sampled_from([1, 32])), "use_gds": draw(st.booleans())}
    strategy = ZeroInference(
        ranks=draw(st.integers(1, there.gpus)),
        weights=draw(st.sampled_from(list(there.tiers))),
        ds_config=DeepSpeedConfig.model_validate({"zero_optimization": zero, "aio": aio}),
        deepspeed_version=draw(st.sampled_from(["0.8.3", "0.9.1", "0.18.3"])),
    )
    return strategy, there


@settings(max_examples=some(25))
@given(shape=shapes(), planned=plans(), forward=st.sampled_from(PASSES))
def test_time_is_bounded_accounted_for_and_repeatable(
    shape: dict[str, object], planned: tuple[ZeroInference, Machine], forward: ForwardPass
) -> None:
    strategy, there = planned
    plan = strategy.plan(load_model(shape), WORK, there)
    try:
        schedule = plan.schedule(forward)
    except InputError:  # "Not enough buffers", as in DeepSpeed
        assume(False)
    timeline = execute(schedule)
    # Sharing rounds rates down to whole B/s, which serial times do not.
    assert lower_bound(schedule) <= timeline.makespan <= serial_time(schedule) * 1.001
    assert sum(attribute(timeline).exposed.values()) == timeline.makespan
    assert execute(plan.schedule(forward)).all_operations.end == timeline.all_operations.end
    read = sum(op.size * block.repeat for block in schedule.blocks for op in block.ops if op.kind == "read")
    once = sum(t.slice_numel * 2 for t in plan.tensors if t.on_nvme and (forward.first or not t.persistent))
    assert once <= read
