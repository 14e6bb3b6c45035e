"""Slips in scenarios of checkpoints, and in the sections ``checkpoint`` and ``dataset`` of training."""

from __future__ import annotations

from tests.broken.slips import Case, edited

SAVED = """\
name: saved
model: llama-3.1-8b
platform: dgx-h100
workload:
  kind: checkpoint
  contents: sharded
  interval: 30 min
  writer: {type: fast}
strategy:
  kind: checkpoint
  ranks: 8
  tier: pfs
"""

TRAINED = """\
name: trained
model: llama-2-7b
platform: dgx-h100
workload:
  kind: training
  batch_size: 1
  sequence_length: 512
strategy:
  kind: deepspeed
  ranks: 2
  ds_config:
    zero_optimization:
      stage: 3
    checkpoint:
      writer: {type: fast}
checkpoint:
  tier: pfs
  interval: 1 h
dataset:
  tier: nfs
  sample_size: 8 KiB
  samples: 1000000
"""


def _saved(case: str, old: str, new: str, *lines: tuple[str, ...]) -> Case:
    return Case(f"saved-{case}", ("run", "s.yaml"), lines, {"s.yaml": edited(SAVED, old, new)})


def _trained(case: str, old: str, new: str, *lines: tuple[str, ...]) -> Case:
    return Case(f"trained-{case}", ("check", "s.yaml"), lines, {"s.yaml": edited(TRAINED, old, new)})


CASES: tuple[Case, ...] = (
    # ---- a scenario of checkpoints ----
    _saved(
        "in-memory",
        "tier: pfs",
        "tier: dram",
        ("s.yaml:12:9: strategy.tier:", 'no storage tier "dram"', "has: raid, nfs, pfs, nvmeof"),
    ),
    _saved(
        "tier-typo",
        "tier: pfs",
        "tier: pfz",
        ("s.yaml:12:9: strategy.tier:", 'no storage tier "pfz"', 'did you mean "pfs"?'),
    ),
    _saved("no-tier", "  tier: pfs\n", "", ("s.yaml:10:3: strategy.tier:", "required key is missing")),
    _saved(
        "swap-in-hbm",
        "  tier: pfs",
        "  tier: pfs\n  swap: hbm",
        ("s.yaml:13:9: strategy.swap:", 'no storage tier "hbm"'),
    ),
    _saved(
        "weights",
        "  tier: pfs",
        "  tier: pfs\n  weights: dram",
        ("s.yaml:13:3: strategy.weights:", "unknown key", "kind, ranks, tier, swap"),
    ),
    _saved(
        "ranks",
        "ranks: 8",
        "ranks: 9",
        ("s.yaml:11:10: strategy.ranks:", "9 ranks, but the platform has 8 GPUs"),
    ),
    _saved(
        "inference",
        "  kind: checkpoint\n  ranks: 8\n  tier: pfs",
        "  kind: deepspeed\n  ranks: 8",
        ("s.yaml:10:9: strategy.kind:", "deepspeed is not for a workload of checkpoint; use checkpoint"),
    ),
    _saved(
        "interval-without-unit",
        "interval: 30 min",
        "interval: 1800",
        ("s.yaml:7:13: workload.interval:", '"1800" has no unit'),
    ),
    _saved(
        "interval-zero",
        "interval: 30 min",
        "interval: 0 s",
        ("s.yaml:7:13: workload.interval:", "must be above 0"),
    ),
    _saved(
        "interval-in-steps-of-no-length",
        "interval: 30 min",
        "interval_steps: 100",
        ("s.yaml:5:3: workload:", "interval_steps needs step_time"),
    ),
    _saved(
        "interval-twice",
        "interval: 30 min",
        "interval: 30 min\n  interval_steps: 100\n  step_time: 1 s",
        ("s.yaml:5:3: workload:", "give interval or interval_steps, not both"),
    ),
    _saved(
        "mode-and-writer",
        "interval: 30 min",
        "mode: snapshot",
        ("s.yaml:5:3: workload:", "mode: snapshot writes with torch.distributed.checkpoint"),
    ),
    _saved(
        "contents",
        "contents: sharded",
        "contents: whole",
        ("s.yaml:6:13: workload.contents:", '"zero", "sharded", "model_only" or "consolidated"'),
    ),
    _saved(
        "gds-through-python",
        "{type: fast}",
        "{type: fast, use_gds: true}",
        ("s.yaml:8:11: workload.writer:", "use_gds needs patched_torch: true"),
    ),
    _saved(
        "buffer-without-unit",
        "{type: fast}",
        "{type: fast, io_buffer_size: 64}",
        ("s.yaml:8:40: workload.writer.io_buffer_size:", '"64" has no unit'),
    ),
    _saved(
        "writer-name",
        "{type: fast}",
        "fast",
        ("s.yaml:8:11: workload.writer:", 'must be a mapping, got "fast"'),
    ),
    _saved(
        "too-many-jobs",
        "interval: 30 min",
        "jobs: 1000000",
        ("s.yaml:7:9: workload.jobs:", "must be at most 10000"),
    ),
    _saved(
        "dataset",
        "  tier: pfs\n",
        "  tier: pfs\ndataset: {tier: nfs, sample_size: 8 KiB, samples: 10}\n",
        ("s.yaml:13:1: dataset:", "is valid only for a training workload, not for checkpoint"),
    ),
    # ---- training with sections ----
    _trained(
        "tiers",
        "  tier: pfs\n  interval: 1 h\ndataset:\n  tier: nfs\n",
        "  tier: hbm\n  interval: 1 h\ndataset:\n  tier: nsf\n",
        ("s.yaml:17:9: checkpoint.tier:", 'no storage tier "hbm"'),
        ("s.yaml:20:9: dataset.tier:", 'no storage tier "nsf"', 'did you mean "nfs"?'),
    ),
    _trained(
        "stage-twice",
        "  interval: 1 h",
        "  stage: 2",
        ("s.yaml:18:3: checkpoint.stage:", "unknown key", "interval_steps, node_mtbf"),
    ),
    _trained(
        "interval-twice",
        "interval: 1 h",
        "interval: 1 h\n  interval_steps: 5",
        ("s.yaml:17:3: checkpoint:", "give interval or interval_steps, not both"),
    ),
    _trained(
        "writer-that-writes-nothing",
        "{type: fast}",
        "{type: mock}",
        ("s.yaml:15:22: strategy.ds_config.checkpoint.writer.type:", 'must be "python" or "fast"'),
    ),
    _trained(
        "pieces-through-python",
        "{type: fast}",
        "{type: fast, data_parallel: replica}",
        ("s.yaml:17:3: checkpoint:", "data_parallel splits files only with"),
    ),
    _trained(
        "mode-and-ds-config",
        "interval: 1 h",
        "mode: snapshot",
        ("s.yaml:17:3: checkpoint:", "leave out DeepSpeed's writer"),
    ),
    _trained(
        "swap-files-sharded",
        "      stage: 3\n    checkpoint:\n      writer: {type: fast}\ncheckpoint:\n  tier: pfs\n",
        "      offload_optimizer: {device: nvme}\ncheckpoint:\n  tier: pfs\n  contents: sharded\n",
        ("s.yaml:15:3: checkpoint:", "copied file by file"),
    ),
    _trained(
        "under-fsdp",
        TRAINED[TRAINED.index("  kind: deepspeed") : TRAINED.index("checkpoint:\n  tier")],
        "  kind: fsdp\n  ranks: 2\n",
        ("s.yaml:11:1: checkpoint:", "checkpoints of fsdp are not modelled"),
    ),
    _trained("samples", "samples: 1000000", "samples: 0", ("s.yaml:22:12: dataset.samples:", "at least 1")),
    _trained(
        "sample-without-unit",
        "8 KiB",
        "8192",
        ("s.yaml:21:16: dataset.sample_size:", '"8192" has no unit'),
    ),
    _trained(
        "no-sample-size",
        "  sample_size: 8 KiB\n",
        "",
        ("s.yaml:20:3: dataset.sample_size:", "required key is missing"),
    ),
    _trained(
        "shuffle",
        "samples: 1000000",
        "samples: 1000000\n  shuffle: random",
        ("s.yaml:23:12: dataset.shuffle:", '"none", "shard" or "full"'),
    ),
)
