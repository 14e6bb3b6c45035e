"""ds_config of training: defaults by version and stage, "auto", and what DeepSpeed refuses."""

from __future__ import annotations

from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.ds_config.keys import batch_problems
from simoffload.strategies.ds_config.settings import TrainingSettings, resolve_training


def resolve(
    tree: dict[str, Any], *, version: str = "0.19.6", dtype_bytes: int = 2
) -> tuple[TrainingSettings, tuple[str, ...]]:
    config = DeepSpeedConfig.model_validate(tree)
    return resolve_training(config, version=version, hidden_size=1000, dtype_bytes=dtype_bytes)


def zero(**more: Any) -> dict[str, Any]:
    return {"zero_optimization": more}


def test_defaults_are_deepspeeds() -> None:
    settings, warnings = resolve({})
    assert warnings == ()
    assert (settings.stage, settings.optimizer, settings.optimizer_device) == (3, "adam", "none")
    assert settings.reduce_bucket_size == settings.allgather_bucket_size == 500_000_000
    assert settings.sub_group_size == 1_000_000_000
    assert (settings.buffer_count, settings.ratio) == (4, 1.0)
    assert not (settings.pipelined)
    assert not (settings.super_offload)
    assert not (settings.zenflow)
    assert not (settings.gradient_clipping)
    assert not (settings.cpu_checkpointing)


@pytest.mark.parametrize(("version", "pinned"), [("0.19.4", False), ("0.19.5", True)])
def test_pages_are_locked_by_default_from_0_19_5_on(version: str, pinned: bool) -> None:
    offload = {"device": "cpu"}
    assert resolve(zero(offload_optimizer=offload), version=version)[0].pin_memory is pinned
    reported = resolve(zero(offload_optimizer={**offload, "pin_memory": not pinned}), version=version)[0]
    assert reported.pin_memory is not pinned


@pytest.mark.parametrize(("stage", "overlap"), [(1, False), (2, False), (3, True)])
def test_overlap_comm_is_the_default_of_stage_3(stage: int, overlap: bool) -> None:
    assert resolve(zero(stage=stage))[0].overlap_comm is overlap
    assert resolve(zero(stage=stage, overlap_comm=not overlap))[0].overlap_comm is not overlap


def test_auto_follows_transformers() -> None:
    """transformers/integrations/deepspeed.py: hidden_size squared for the reduce bucket."""
    settings, _ = resolve(zero(reduce_bucket_size="auto", sub_group_size=1e9, allgather_bucket_size="auto"))
    assert settings.reduce_bucket_size == 1_000_000
    assert (settings.sub_group_size, settings.allgather_bucket_size) == (10**9, 5 * 10**8)


@pytest.mark.parametrize(
    ("dtype", "dtype_bytes", "size"), [(None, 2, 2), (None, 4, 4), ("fp32", 2, 4), ("bf16", 4, 2)]
)
def test_gradients_are_accumulated_in_the_models_type_unless_told(
    dtype: str | None, dtype_bytes: int, size: int
) -> None:
    config = {"data_types": {"grad_accum_dtype": dtype}}
    assert resolve(config, dtype_bytes=dtype_bytes)[0].gradient_bytes == size


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("AdamW", "adam"),
        ("FusedAdam", "adam"),
        ("DeepSpeedCPUAdam", "adam"),
        ("sgd", "sgd"),
        ("AdamW_8bit", "adam8bit"),
        ("Adafactor", "adafactor"),
    ],
)
def test_optimizers_by_name(name: str, kind: str) -> None:
    assert resolve({"optimizer": {"type": name}})[0].optimizer == kind


@pytest.mark.parametrize(("value", "clips"), [(0.0, False), (1.0, True), ("auto", True)])
def test_clipping(value: Any, clips: bool) -> None:
    assert resolve({"gradient_clipping": value})[0].gradient_clipping is clips


def test_keys_of_the_optimizers_section_that_nobody_reads_stop_deepspeed() -> None:
    with pytest.raises(InputError, match=r'offload_optimizer\.pin_memoy: unknown .* mean "pin_memory"'):
        resolve(zero(offload_optimizer={"device": "cpu", "pin_memoy": True}))


CPU, NVME = {"device": "cpu"}, {"device": "nvme"}


@pytest.mark.parametrize(
    ("tree", "key", "message"),
    [
        (
            zero(stage=2, offload_param=CPU),
            "zero_optimization.offload_param.device",
            '"cpu" needs stage 3, not 2',
        ),
        (
            zero(stage=0, offload_optimizer=CPU),
            "zero_optimization.offload_optimizer.device",
            '"cpu" needs stage 1, 2 or 3, not 0',
        ),
        (
            zero(stage=1, offload_optimizer=NVME),
            "zero_optimization.offload_optimizer.device",
            '"nvme" needs stage 3, not 1',
        ),
        (zero(offload_param=NVME), "zero_optimization.offload_param.device", "set offload_optimizer.device"),
        (zero(stage=0, zenflow={}), "zero_optimization.zenflow", "needs stage 1, 2 or 3, not 0"),
        (
            zero(stage=2, offload_optimizer={**CPU, "super_offload": True}),
            "zero_optimization.offload_optimizer.super_offload",
            "needs stage 3, not 2",
        ),
        ({"optimizer": {"type": "Lion"}}, "optimizer.type", '"Lion" is not modelled; known: AdamW'),
        (
            {**zero(offload_optimizer=CPU), "optimizer": {"type": "SGD"}},
            "optimizer.type",
            "only Adam is run on the CPU by DeepSpeed; got SGD",
        ),
        (
            zero(offload_optimizer=CPU, zenflow={"select_strategy": "step"}),
            "zero_optimization.zenflow.select_interval",
            "needs a number",
        ),
        (
            zero(offload_optimizer=CPU, zenflow={"select_interval": 3}),
            "zero_optimization.zenflow.select_interval",
            "stops DeepSpeed",
        ),
        (
            zero(
                offload_optimizer=CPU,
                zenflow={"select_strategy": "step", "select_interval": 3, "update_interval": 4},
            ),
            "zero_optimization.zenflow.select_interval",
            "3 is less than update_interval 4",
        ),
    ],
)
def test_refused(tree: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(tree)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert message in problem.message


def test_batches_must_agree_with_the_workload() -> None:
    config = DeepSpeedConfig.model_validate(
        {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3, "train_batch_size": 12}
    )
    assert batch_problems(config, batch=2, accumulation=3, ranks=2) == []
    wrong = batch_problems(config, batch=2, accumulation=4, ranks=3)
    assert [(one.key, one.message.split(",")[0]) for one in wrong] == [
        ("gradient_accumulation_steps", "3 contradicts the workload"),
        ("train_batch_size", "12 contradicts the workload"),
    ]
    assert "makes it 24" in wrong[1].message


def test_batches_left_to_transformers_agree_with_everything() -> None:
    auto = dict.fromkeys(
        ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"), "auto"
    )
    config = DeepSpeedConfig.model_validate(auto)
    assert batch_problems(config, batch=7, accumulation=5, ranks=3) == []
