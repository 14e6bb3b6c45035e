"""How a broken input is written down: a good one with a slip, and the line that each problem must give."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

SCENARIO = """\
name: small
model: bloom-560m
platform: dgx-a100
workload:
  kind: inference
  batch_size: 2
  prompt_length: 8
  output_length: 4
strategy:
  kind: deepspeed
  ranks: 2
  weights: raid
  deepspeed_version: 0.9.1
  ds_config:
    zero_optimization:
      stage: 3
      offload_param:
        buffer_count: 5
        buffer_size: 4e9
    aio:
      block_size: 1048576
      queue_depth: 32
      thread_count: 4
"""

DRIVE = """\
kind: drive
id: test-drive
name: "A drive for tests"
capacity: {value: "3.84 TB", origin: spec, source: "data sheet", date: 2026-11-20}
read: {value: "7.0 GB/s", origin: spec, source: "data sheet", date: 2026-11-20}
write: {value: "3.8 GB/s", origin: spec, source: "data sheet", date: 2026-11-20}
read_latency: {value: "100 us", origin: spec, source: "data sheet", date: 2026-11-20}
write_latency: {value: "25 us", origin: spec, source: "data sheet", date: 2026-11-20}
pcie:
  profile: gen4
  lanes: {value: 4, origin: spec, source: "data sheet", date: 2026-11-20}
"""

PLATFORM = """\
kind: platform
id: test-platform
name: "A machine for tests"
wiring:
  - {about: "all of it", origin: estimate, source: "made up", date: 2026-11-20}
host: i5-14600k-96gb
accelerator: rtx-4090
gpus: [cpu]
gpu_links: none
tiers:
  nvme: {profile: samsung-980-pro-2tb, at: [cpu]}
"""

DS_CONFIG = """\
{
  "zero_optimization": {
    "stage": 3,
    "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "buffer_size": 1e8}
  },
  "aio": {"block_size": 1048576, "queue_depth": 8}
}
"""


class Case(NamedTuple):
    """Files in a fresh folder, a command in that folder, and the lines that it must answer."""

    id: str
    argv: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    """For every line expected on standard error the texts that it must hold, in order."""
    files: Mapping[str, str | bytes] = MappingProxyType({})
    stdin: bytes = b""


def edited(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the text"
    return text.replace(old, new)


def scenario(case: str, old: str, new: str, *lines: tuple[str, ...]) -> Case:
    """The good scenario with one slip."""
    return Case(case, ("run", "s.yaml"), lines, {"s.yaml": edited(SCENARIO, old, new)})


def drive(case: str, old: str, new: str, *lines: tuple[str, ...]) -> Case:
    """The good drive with one slip."""
    return Case(case, ("check", "d.yaml"), lines, {"d.yaml": edited(DRIVE, old, new)})


def platform(case: str, old: str, new: str, *lines: tuple[str, ...]) -> Case:
    """The good platform with one slip."""
    return Case(case, ("profiles", "check", "p.yaml"), lines, {"p.yaml": edited(PLATFORM, old, new)})


def ds_config(case: str, old: str, new: str, *lines: tuple[str, ...]) -> Case:
    """The good ds_config.json with one slip."""
    return Case(case, ("check", "ds.json"), lines, {"ds.json": edited(DS_CONFIG, old, new)})


def raw(
    case: str, content: str | bytes, *lines: tuple[str, ...], name: str = "s.yaml", command: str = "run"
) -> Case:
    """A file that is nothing of the kind."""
    return Case(case, (command, name), lines, {name: content})


def command(case: str, argv: str, *lines: tuple[str, ...]) -> Case:
    """A command line that cannot work, beside a good scenario."""
    return Case(case, tuple(argv.split()), lines, {"s.yaml": SCENARIO})
