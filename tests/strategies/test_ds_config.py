"""ds_config.json: DeepSpeed's names, defaults by version, and warnings for what is not read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from simoffload.errors import InputError
from simoffload.strategies.ds_config import DeepSpeedConfig, OffloadSettings, resolve_settings


def resolve(tree: dict[str, Any], version: str = "0.19.6") -> tuple[OffloadSettings, tuple[str, ...]]:
    return resolve_settings(DeepSpeedConfig.model_validate(tree), version=version, hidden_size=1000)


def test_defaults_are_deepspeeds() -> None:
    settings, warnings = resolve({})
    assert warnings == ()
    assert settings.stage3_prefetch_bucket_size == 50_000_000
    assert settings.stage3_max_live_parameters == settings.stage3_max_reuse_distance == 1_000_000_000
    assert settings.stage3_param_persistence_threshold == 100_000
    assert (settings.buffer_count, settings.buffer_size) == (5, 100_000_000)
    assert (settings.block_size, settings.queue_depth, settings.threads) == (1 << 20, 8, 1)
    assert settings.outstanding_bytes == 8 << 20
    assert settings.device is None


def test_every_thread_has_its_requests_in_flight() -> None:
    settings, _ = resolve({"aio": {"block_size": 1 << 19, "queue_depth": 4, "intra_op_parallelism": 3}})
    assert settings.outstanding_bytes == 3 * 4 << 19


def test_floats_mean_whole_numbers_and_auto_follows_transformers() -> None:
    settings, _ = resolve(
        {
            "zero_optimization": {
                "stage": 3,
                "stage3_prefetch_bucket_size": "auto",
                "stage3_param_persistence_threshold": "auto",
                "offload_param": {"device": "nvme", "buffer_size": 4e9},
            }
        }
    )
    assert settings.stage3_prefetch_bucket_size == 900_000
    assert settings.stage3_param_persistence_threshold == 10_000
    assert settings.buffer_size == 4_000_000_000


@pytest.mark.parametrize(
    ("version", "key", "threads", "warned"),
    [
        ("0.16.3", "thread_count", 4, False),
        ("0.16.4", "thread_count", 1, True),
        ("0.16.3", "intra_op_parallelism", 1, True),
        ("0.16.4", "intra_op_parallelism", 4, False),
    ],
)
def test_thread_count_was_renamed_in_0_16_4(version: str, key: str, threads: int, warned: bool) -> None:
    settings, warnings = resolve({"aio": {key: 4}}, version)
    assert settings.threads == threads
    assert any("is ignored by DeepSpeed" in warning for warning in warnings) == warned


def test_pinned_memory_became_the_default_in_0_19_5() -> None:
    offload = {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}
    assert not resolve(offload, "0.19.4")[0].pin_memory
    assert resolve(offload, "0.19.5")[0].pin_memory


def test_gpudirect_storage_came_with_0_15_0() -> None:
    settings, warnings = resolve({"aio": {"use_gds": True}}, "0.14.5")
    assert not settings.use_gds
    assert "use_gds is ignored by DeepSpeed 0.14.5" in warnings[0]
    assert resolve({"aio": {"use_gds": True}}, "0.15.0")[0].use_gds


def test_aio_modes_that_are_not_modelled_warn() -> None:
    assert "not modelled" in resolve({"aio": {"single_submit": True}})[1][0]
    assert "not modelled" in resolve({"aio": {"overlap_events": False}})[1][0]


def test_overlap_comm_is_on_unless_it_is_switched_off() -> None:
    for given, overlaps in ((None, True), (True, True), (False, False)):
        assert resolve({"zero_optimization": {"overlap_comm": given}})[0].overlap_comm is overlaps


def test_unknown_and_unmodelled_keys_warn() -> None:
    _, warnings = resolve(
        {"train_batch_size": 8, "aio": {"queue_dept": 1}, "zero_optimization": {"zero_hpz_partition_size": 8}}
    )
    assert len(warnings) == 2
    assert "zero_hpz_partition_size: 8 is not modelled" in warnings[0]
    assert 'did you mean "queue_depth"' in warnings[1]


@pytest.mark.parametrize(
    "tree", [{"aio": {"queue_depth": 0}}, {"zero_optimization": {"offload_param": {"device": "ssd"}}}]
)
def test_values_that_deepspeed_refuses_are_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        resolve(tree)


def test_only_stage_3_offloads_parameters() -> None:
    with pytest.raises(InputError, match="ZeRO-Inference needs 3"):
        resolve({"zero_optimization": {"stage": 2}})
