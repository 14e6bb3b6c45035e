"""Every key of ds_config is read, without effect for a stated reason, told, or refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import simoffload
from simoffload.errors import InputError
from simoffload.strategies.ds_config import DeepSpeedConfig, keys, resolve_settings
from simoffload.strategies.ds_config.keys import keys_of, trains
from simoffload.strategies.ds_config.settings import resolve_training

SECTIONS = [
    one for one in vars(keys).values() if isinstance(one, type) and issubclass(one, keys.ConfigSection)
]
FIELDS = [(section, field) for section in SECTIONS for field in section.model_fields]


def training(tree: dict[str, Any]) -> tuple[str, ...]:
    config = DeepSpeedConfig.model_validate(tree)
    return resolve_training(config, hidden_size=1000, dtype_bytes=2)[1]


def inference(tree: dict[str, Any]) -> tuple[str, ...]:
    return resolve_settings(DeepSpeedConfig.model_validate(tree), hidden_size=1000)[1]


def zero(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": keys}


# -- nothing is taken without a word ---------------------------------------------------------------------


def readers() -> str:
    """The source of everything that reads settings."""
    package = Path(simoffload.__file__).parent
    rooms = [package / "strategies", package / "cli", package / "extensions"]
    declared = {"keys.py"}
    texts = [path.read_text() for room in rooms for path in room.rglob("*.py") if path.name not in declared]
    table = (package / "strategies" / "ds_config" / "keys.py").read_text()
    return "\n".join([*texts, table.partition("class DeepSpeedConfig")[2]])


def accounted(section: type[keys.ConfigSection], field: str) -> bool:
    """Whether a field is declared to have no effect, or to cause a warning."""
    declared = [one for one in section.model_fields[field].metadata if isinstance(one, keys.Key)]
    return any(one == keys.Key() or one.simulated is not keys.Key().simulated for one in declared)


def test_every_declared_key_is_read_or_accounted_for() -> None:
    assert len(FIELDS) > 60
    source = readers()
    left = {
        f"{section.__name__}.{field}"
        for section, field in FIELDS
        if not re.search(rf"""[."']{field}\b""", source) and not accounted(section, field)
    }
    assert left == set()


def test_what_is_told_of_a_declared_key_is_told_of_all_but_its_default() -> None:
    declared = [
        (section, key)
        for section in SECTIONS
        for key, one in keys_of(section).items()
        if key in section.model_fields and one.simulated is not keys.Key().simulated
    ]
    assert {key for _, key in declared} == {
        "contiguous_gradients",
        "reduce_scatter",
        "fast_init",
        "auto_ratio",
        "leaf_module",
    }
    for section, key in declared:
        assert keys_of(section)[key].simulated == section.model_fields[key].default


# -- what is told ----------------------------------------------------------------------------------------

CPU = {"device": "cpu", "pin_memory": True}
ALIKE = [
    {},
    zero(stage=3, contiguous_gradients=True, reduce_scatter=True),
    zero(stage=0, contiguous_gradients=False, reduce_scatter=False),
    zero(stage=2, round_robin_gradients=True, offload_optimizer=CPU),
    zero(stage=2, reduce_scatter=False),
    zero(stage=2, stage3_module_granularity_threshold=10_000),
    zero(stage=3, offload_optimizer={**CPU, "fast_init": False, "nvme_path": "/nvme"}),
    zero(stage=3, zero_hpz_partition_size=1, mics_shard_size=-1, zero_quantized_weights=False),
    zero(stage=3, offload_optimizer=CPU, zenflow={"update_interval": 4, "auto_ratio": 0.5}),
    {"activation_checkpointing": {"partition_activations": True, "profile": True, "number_checkpoints": 4}},
    {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1, "torch_adam": False}}},
    {"fp16": {"enabled": True, "loss_scale": 0, "hysteresis": 2}, "communication_data_type": "fp16"},
    {"bf16": {"enabled": True, "check_grad_overflow": False}, "communication_data_type": "bfp16"},
    {"amp": {"enabled": False}, "nebula": {"enabled": False}, "sparse_gradients": False, "elasticity": None},
    {"wall_clock_breakdown": True, "steps_per_print": 10, "dataloader_drop_last": True},
    zero(stage=3, cpu_offload=False, cpu_offload_param=False),
]


@pytest.mark.parametrize("tree", ALIKE, ids=str)
def test_what_changes_nothing_is_taken_without_a_word(tree: dict[str, Any]) -> None:
    assert training(tree) == ()


TOLD: list[tuple[dict[str, Any], str, str]] = [
    (
        zero(stage=3, contiguous_gradients=False),
        "zero_optimization.contiguous_gradients: false is not modelled",
        "a bucket of reduce_bucket_size",
    ),
    (zero(stage=1, contiguous_gradients=False), "zero_optimization.contiguous_gradients: false is not", ""),
    (
        zero(stage=3, reduce_scatter=False),
        "zero_optimization.reduce_scatter: false is not modelled",
        "DeepSpeed would all-reduce them, twice the bytes",
    ),
    (
        zero(stage=2, use_multi_rank_bucket_allreduce=False),
        "zero_optimization.use_multi_rank_bucket_allreduce: false is not modelled",
        "all-reduced",
    ),
    (
        zero(stage=3, offload_optimizer={**CPU, "fast_init": True}),
        "zero_optimization.offload_optimizer.fast_init: true is not modelled",
        "the same bytes",
    ),
    (
        zero(stage=3, offload_optimizer=CPU, zenflow={"auto_ratio": 0.5}),
        "zero_optimization.zenflow.auto_ratio: 0.5 is not modelled",
        'update_interval "auto"',
    ),
    (
        {"activation_checkpointing": {"cpu_checkpointing": True, "synchronize_checkpoint_boundary": True}},
        "activation_checkpointing.synchronize_checkpoint_boundary: true is not modelled",
        "",
    ),
    (
        {"optimizer": {"params": {"torch_adam": True}}},
        "optimizer.params.torch_adam: true is not modelled",
        "PyTorch's",
    ),
    (
        {"bf16": {"enabled": True}, "communication_data_type": "fp32"},
        'communication_data_type: "fp32" is not modelled',
        "in the model's type",
    ),
    ({"zero_force_ds_cpu_optimizer": False}, "zero_force_ds_cpu_optimizer: false is not modelled", "Adam"),
    ({"comms_logger": {"enabled": True}}, "comms_logger: not modelled", "after each collective"),
    ({"progressive_layer_drop": {"enabled": True}}, "progressive_layer_drop: not modelled", ""),
    (zero(stage=0) | {"amp": {"enabled": True}}, "amp: not modelled", ""),
    (zero(stage=3, mics_shard_size=8), "zero_optimization.mics_shard_size: 8 is not modelled", ""),
]


@pytest.mark.parametrize(("tree", "start", "reason"), TOLD, ids=[start for _, start, _ in TOLD])
def test_other_values_are_told(tree: dict[str, Any], start: str, reason: str) -> None:
    (warning,) = training(tree)
    assert warning.startswith(f"ds_config {start}")
    assert reason in warning


def test_an_all_reduce_of_stage_3_needs_the_bucket() -> None:
    (warning,) = training(zero(stage=3, contiguous_gradients=False, reduce_scatter=False))
    assert "contiguous_gradients" in warning


def test_inference_is_not_told_of_gradients() -> None:
    tree = zero(stage=3, contiguous_gradients=False, reduce_scatter=False, zero_quantized_gradients=True)
    assert len(training(tree)) == 2
    assert inference(tree) == ()
    assert inference({"communication_data_type": "fp32", "elasticity": {"enabled": True}}) == ()
    (frozen,) = inference(zero(stage=3, zero_quantized_nontrainable_weights=True))
    assert "true is not modelled; weights that are frozen" in frozen
    (warning,) = inference(zero(stage=3, enable_sanity_checks=True))
    assert warning == "ds_config zero_optimization.enable_sanity_checks: true is not modelled"


def test_an_unknown_key_stops_deepspeed_where_it_checks_its_sections() -> None:
    """pydantic with ``extra="forbid"`` reads zero_optimization; aio is read key by key."""
    stops = "unknown key, at which DeepSpeed stops; did you mean"
    assert refused(zero(stage=3, contigous_gradients=False)) == {
        "zero_optimization.contigous_gradients": f'{stops} "contiguous_gradients"?'
    }
    assert refused({"fp16": {"loss_scal": 0}}) == {"fp16.loss_scal": f'{stops} "loss_scale"?'}
    with pytest.raises(InputError, match=r"offload_optimizer\.pin_memroy: unknown key, at which DeepSpeed"):
        inference(zero(stage=3, offload_optimizer={"device": "cpu", "pin_memroy": True}))
    (loose,) = training({"aio": {"blocksize": 1}})
    assert loose.startswith("ds_config aio.blocksize: unknown key, which DeepSpeed ignores; did you mean")


def test_names_without_their_prefix_are_told() -> None:
    (warning,) = inference(zero(stage=3, prefetch_bucket_size=0))
    assert "write stage3_prefetch_bucket_size" in warning


# -- what is refused -------------------------------------------------------------------------------------


def refused(tree: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        training(tree)
    return {one.key: one.message for one in caught.value.problems}


@pytest.mark.parametrize(
    ("tree", "key", "message"),
    [
        (
            zero(stage=2, cpu_offload=True),
            "zero_optimization.cpu_offload",
            "offload_optimizer: {device: cpu}",
        ),
        (zero(cpu_offload_param=True), "zero_optimization.cpu_offload_param", "offload_param: {device: cpu}"),
        (
            {"bf16": {"bf16_master_weights_and_grads": True}},
            "bf16.bf16_master_weights_and_grads",
            "counted in single precision",
        ),
        ({"amp": {"enabled": True}}, "amp.enabled", "amp cannot be combined with ZeRO"),
        (
            zero(stage=2, offload_optimizer={**CPU, "ratio": 0.3}),
            "zero_optimization.offload_optimizer.ratio",
            "0.3 needs stage 3, not 2",
        ),
    ],
)
def test_what_would_be_far_off_is_refused(tree: dict[str, Any], key: str, message: str) -> None:
    problems = refused(tree)
    assert list(problems) == [key]
    assert message in problems[key]


def test_all_that_is_refused_is_said_at_once() -> None:
    both = {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
    assert list(refused(both)) == ["bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"]


def test_inference_refuses_the_old_name_of_its_own_offload_only() -> None:
    assert inference({**zero(stage=3, cpu_offload=True), "bf16": {"bf16_optimizer_states": True}}) == ()
    with pytest.raises(InputError, match="old name of offload_param"):
        inference(zero(stage=3, cpu_offload_param=True))


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({}, False),
        ({**zero(offload_param={"device": "nvme"}), "train_micro_batch_size_per_gpu": 1}, False),
        (zero(stage=2), True),
        (zero(stage=3, offload_optimizer=CPU), True),
        (zero(stage=3, zenflow={}), True),
        ({"optimizer": {"type": "AdamW"}}, True),
        ({"gradient_accumulation_steps": 4}, True),
    ],
)
def test_a_config_for_training_has_a_word_on_it(tree: dict[str, Any], expected: bool) -> None:
    assert trains(DeepSpeedConfig.model_validate(tree)) is expected
