"""Slips in scenarios of training, under ZeRO and under FSDP."""

from __future__ import annotations

from tests.broken.slips import Case, edited

TRAINING = """\
name: tuning
model: opt-350m
platform: dgx-a100
workload:
  kind: training
  batch_size: 2
  sequence_length: 256
  gradient_accumulation_steps: 4
strategy:
  kind: deepspeed
  ranks: 2
  weights: hbm
  optimizer: raid
  deepspeed_version: 0.18.3
  cpu_threads: 8
  ds_config:
    zero_optimization:
      stage: 3
      sub_group_size: 1e8
      offload_param:
        buffer_size: 1e8
      offload_optimizer:
        buffer_count: 4
    optimizer:
      type: AdamW
    gradient_clipping: 1.0
    train_batch_size: auto
"""
FSDP = (
    TRAINING[: TRAINING.index("strategy:")]
    + """\
strategy:
  kind: fsdp
  ranks: 2
  cpu_offload: true
  backward_prefetch: pre
"""
)
_ZERO = "strategy.ds_config.zero_optimization"
_PLACES = TRAINING[TRAINING.index("  weights:") : TRAINING.index("      sub_group_size")]
_SECTIONS = TRAINING[TRAINING.index("      sub_group_size") : TRAINING.index("    optimizer:")]
_STAGE_3 = TRAINING[TRAINING.index("      stage: 3") : TRAINING.index("    optimizer:")]
"""All of ``zero_optimization``."""


def training(case: str, old: str, new: str, *lines: tuple[str, ...], command: str = "run") -> Case:
    """The good scenario of training with one slip."""
    return Case(f"training-{case}", (command, "t.yaml"), lines, {"t.yaml": edited(TRAINING, old, new)})


def fsdp(case: str, old: str, new: str, *lines: tuple[str, ...]) -> Case:
    """The good scenario of FSDP with one slip."""
    return Case(f"fsdp-{case}", ("run", "t.yaml"), lines, {"t.yaml": edited(FSDP, old, new)})


CASES: tuple[Case, ...] = (
    # ---- the workload ----
    training(
        "no-length",
        "  sequence_length: 256\n",
        "",
        ("t.yaml:5:3: workload.sequence_length:", "required key is missing"),
    ),
    training(
        "zero-accumulation",
        "gradient_accumulation_steps: 4",
        "gradient_accumulation_steps: 0",
        ("t.yaml:8:32: workload.gradient_accumulation_steps:", "must be at least 1, got 0"),
    ),
    training(
        "checkpointing-is-text",
        "gradient_accumulation_steps: 4",
        "gradient_checkpointing: sometimes",
        ("t.yaml:8:27: workload.gradient_checkpointing:", 'must be true or false, got "sometimes"'),
    ),
    training(
        "prompt",
        "sequence_length: 256",
        "sequence_length: 256\n  prompt_length: 8",
        ("t.yaml:8:3: workload.prompt_length:", "unknown key"),
    ),
    training(
        "kind",
        "kind: training",
        "kind: trainig",
        ("t.yaml:5:9: workload.kind:", 'got "trainig"', 'did you mean "training"'),
    ),
    # ---- what a strategy is for ----
    training(
        "inference-strategy",
        TRAINING[TRAINING.index("  kind: deepspeed") :],
        "  kind: accelerate\n",
        ("t.yaml:10:9: strategy.kind:", "accelerate is not for a workload of training", "fsdp"),
    ),
    training(
        "inference-workload",
        "kind: training\n  batch_size: 2\n  sequence_length: 256\n  gradient_accumulation_steps: 4",
        "kind: inference\n  batch_size: 2\n  prompt_length: 8\n  output_length: 4",
        ("t.yaml:13:3: strategy.optimizer:", "unknown key", "known here: kind, ranks, kv_cache, weights"),
        ("t.yaml:15:3: strategy.cpu_threads:", "unknown key"),
    ),
    # ---- places ----
    training(
        "unknown-optimizer-tier",
        "optimizer: raid",
        "optimizer: rad",
        ("t.yaml:13:14: strategy.optimizer:", 'no tier "rad" on platform "dgx-a100"', 'did you mean "raid"'),
    ),
    training(
        "empty-optimizer-tier",
        "optimizer: raid",
        "optimizer:",
        ("t.yaml:13:13: strategy.optimizer:", "is empty"),
    ),
    training(
        "weights-below-stage-3",
        _PLACES,
        _PLACES.replace("hbm", "dram").replace("raid", "dram").replace("stage: 3", "stage: 2"),
        ("t.yaml:12:12: strategy.weights:", "parameters leave the GPU only in stage 3, not 2"),
    ),
    training(
        "optimizer-below-stage-1",
        _PLACES,
        _PLACES.replace("raid", "dram").replace("stage: 3", "stage: 0"),
        ("t.yaml:13:14: strategy.optimizer:", "stage 0 offloads nothing"),
    ),
    training(
        "optimizer-below-stage-3",
        "stage: 3",
        "stage: 2",
        ("t.yaml:13:14: strategy.optimizer:", "the optimizer goes to storage only in stage 3, not 2"),
    ),
    training(
        "offloaded-parameters-below-stage-3",
        "stage: 3\n      sub_group_size: 1e8\n      offload_param:\n",
        "stage: 2\n      sub_group_size: 1e8\n      offload_param:\n        device: cpu\n",
        (f"t.yaml:21:17: {_ZERO}.offload_param.device:", '"cpu" needs stage 3, not 2'),
    ),
    training(
        "optimizer-in-stage-0",
        "stage: 3\n      sub_group_size: 1e8\n      offload_param:\n        buffer_size: 1e8\n"
        "      offload_optimizer:\n",
        "stage: 0\n      offload_optimizer:\n        device: cpu\n",
        (f"t.yaml:20:17: {_ZERO}.offload_optimizer.device:", '"cpu" needs stage 1, 2 or 3, not 0'),
    ),
    training(
        "optimizer-on-storage-in-stage-1",
        "stage: 3\n      sub_group_size: 1e8\n      offload_param:\n        buffer_size: 1e8\n"
        "      offload_optimizer:\n",
        "stage: 1\n      offload_optimizer:\n        device: nvme\n",
        (f"t.yaml:20:17: {_ZERO}.offload_optimizer.device:", '"nvme" needs stage 3, not 1'),
    ),
    training(
        "parameters-on-storage-without-the-optimizer",
        "weights: hbm\n  optimizer: raid",
        "weights: raid\n  optimizer: hbm",
        ("t.yaml:13:14: strategy.optimizer:", "refuses parameters on storage with the optimizer on the GPU"),
    ),
    training(
        "parameters-on-storage-by-ds-config",
        "offload_param:\n",
        "offload_param:\n        device: nvme\n",
        (f"t.yaml:21:17: {_ZERO}.offload_param.device:", "set offload_optimizer.device"),
    ),
    training(
        "no-storage",
        "platform: dgx-a100",
        "platform: gpu-workstation-of-nobody",
        ("t.yaml:3:11: platform:", 'there is no platform "gpu-workstation-of-nobody"'),
    ),
    # ---- buffers ----
    training(
        "too-few-buffers",
        "buffer_count: 4",
        "buffer_count: 3",
        (f"t.yaml:23:23: {_ZERO}.offload_optimizer.buffer_count:", "3 buffers; DeepSpeed needs 4"),
    ),
    training(
        "too-few-buffers-for-a-pipeline",
        "buffer_count: 4",
        "buffer_count: 4\n        pipeline_read: true",
        (f"t.yaml:23:23: {_ZERO}.offload_optimizer.buffer_count:", "4 buffers; DeepSpeed needs 8"),
    ),
    training(
        "small-parameter-buffer",
        _PLACES + _SECTIONS,
        _PLACES.replace("hbm", "raid")
        + _SECTIONS.replace("1e8\n      offload_o", "1e6\n        max_in_cpu: 0\n      offload_o"),
        (f"t.yaml:21:22: {_ZERO}.offload_param.buffer_size:", "More elements", "than buffer size 1000000"),
    ),
    # ---- the optimizer and its knobs ----
    training(
        "optimizer-unknown",
        "type: AdamW",
        "type: Lion",
        ("t.yaml:25:13: strategy.ds_config.optimizer.type:", '"Lion" is not modelled; known: AdamW'),
    ),
    training(
        "sgd-on-the-cpu",
        "      offload_optimizer:\n        buffer_count: 4\n    optimizer:\n      type: AdamW",
        "      offload_optimizer:\n        device: cpu\n    optimizer:\n      type: SGD",
        (
            "t.yaml:25:13: strategy.ds_config.optimizer.type:",
            "only Adam is run on the CPU",
            "got SGD",
        ),
    ),
    training(
        "ratio",
        "buffer_count: 4",
        "ratio: 1.5",
        (f"t.yaml:23:16: {_ZERO}.offload_optimizer.ratio:", "must be at most 1", "got 1.5"),
    ),
    training(
        "ratio-below-stage-3",
        _STAGE_3.lstrip(),
        "stage: 2\n      offload_optimizer:\n        device: cpu\n        ratio: 0.5\n",
        (f"t.yaml:21:16: {_ZERO}.offload_optimizer.ratio:", "0.5 needs stage 3, not 2"),
    ),
    training(
        "old-name",
        "stage: 3\n",
        "stage: 3\n      cpu_offload: true\n",
        (f"t.yaml:19:20: {_ZERO}.cpu_offload:", "is the old name of offload_optimizer: {device: cpu}"),
    ),
    training(
        "master-weights",
        "gradient_clipping: 1.0",
        "bf16: {enabled: true, bf16_master_weights_and_grads: true, bf16_optimizer_states: true}",
        (
            "t.yaml:26:58: strategy.ds_config.bf16.bf16_master_weights_and_grads:",
            "is not modelled: master weights, gradients and moments are counted in single precision",
        ),
        ("t.yaml:26:87: strategy.ds_config.bf16.bf16_optimizer_states:", "is not modelled"),
    ),
    training(
        "gradient-type",
        "gradient_clipping: 1.0",
        "data_types: {grad_accum_dtype: fp8}",
        (
            "t.yaml:26:36: strategy.ds_config.data_types.grad_accum_dtype:",
            'must be "fp32", "fp16" or "bf16", got "fp8"',
        ),
    ),
    training(
        "clipping",
        "gradient_clipping: 1.0",
        "gradient_clipping: -1",
        ("t.yaml:26:24: strategy.ds_config.gradient_clipping:", "got -1"),
    ),
    training(
        "super-offload",
        _STAGE_3.lstrip(),
        "stage: 2\n      offload_optimizer:\n        device: cpu\n        super_offload: true\n",
        (f"t.yaml:21:24: {_ZERO}.offload_optimizer.super_offload:", "needs stage 3, not 2"),
    ),
    training(
        "zenflow-stage",
        _STAGE_3.lstrip(),
        "stage: 0\n      zenflow: {}\n",
        (f"t.yaml:19:16: {_ZERO}.zenflow:", "needs stage 1, 2 or 3, not 0"),
    ),
    training(
        "threads",
        "cpu_threads: 8",
        "cpu_threads: 0",
        ("t.yaml:15:16: strategy.cpu_threads:", "must be at least 1, got 0"),
    ),
    training(
        "ranks",
        "ranks: 2",
        "ranks: 16",
        ("t.yaml:11:10: strategy.ranks:", "16 ranks, but the platform has 8 GPUs"),
    ),
    # ---- batches ----
    training(
        "batches-contradict",
        "train_batch_size: auto",
        "train_batch_size: 32\n    train_micro_batch_size_per_gpu: 4",
        (
            "t.yaml:28:37: strategy.ds_config.train_micro_batch_size_per_gpu:",
            "4 contradicts the workload, which makes it 2",
        ),
        (
            "t.yaml:27:23: strategy.ds_config.train_batch_size:",
            "32 contradicts the workload, which makes it 16",
        ),
    ),
    training(
        "batches-and-more",
        "train_batch_size: auto\n",
        "gradient_accumulation_steps: 8\n    zero_force: 1\n",
        (
            "t.yaml:27:34: strategy.ds_config.gradient_accumulation_steps:",
            "8 contradicts the workload, which makes it 4",
        ),
    ),
    training(
        "two-precisions",
        "train_batch_size: auto\n",
        "fp16: {enabled: true}\n    bf16: {enabled: true}\n",
        ("t.yaml:28:11: strategy.ds_config.bf16:", "bf16 and fp16 cannot both be enabled; leave one out"),
    ),
    training(
        "key-at-which-deepspeed-stops",
        "train_batch_size: auto\n",
        "fp16: {loss_scal: 0}\n",
        (
            "t.yaml:27:23: strategy.ds_config.fp16.loss_scal:",
            'unknown key, at which DeepSpeed stops; did you mean "loss_scale"?',
        ),
    ),
    # ---- FSDP ----
    fsdp(
        "prefetch",
        "backward_prefetch: pre",
        "backward_prefetch: early",
        ("t.yaml:13:22: strategy.backward_prefetch:", 'must be "pre", "post" or "none", got "early"'),
    ),
    fsdp(
        "deepspeeds-key",
        "cpu_offload: true",
        "ds_config: {}",
        ("t.yaml:12:3: strategy.ds_config:", "unknown key"),
    ),
    fsdp(
        "offload-is-text",
        "cpu_offload: true",
        "cpu_offload: params",
        ("t.yaml:12:16: strategy.cpu_offload:", 'must be true or false, got "params"'),
    ),
    fsdp(
        "too-many-ranks",
        "ranks: 2",
        "ranks: 9",
        ("t.yaml:11:10: strategy.ranks:", "9 ranks, but the platform has 8 GPUs"),
    ),
    fsdp(
        "inference",
        "kind: training\n  batch_size: 2\n  sequence_length: 256\n  gradient_accumulation_steps: 4",
        "kind: inference\n  batch_size: 2\n  prompt_length: 8\n  output_length: 4",
        ("t.yaml:10:9: strategy.kind:", "fsdp is not for a workload of inference"),
    ),
    fsdp(
        "checkpoint",
        "strategy:",
        "checkpoint: {tier: raid}\nstrategy:",
        ("t.yaml:9:1: checkpoint:", "checkpoints of fsdp are not modelled"),
    ),
)
