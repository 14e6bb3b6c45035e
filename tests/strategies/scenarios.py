"""Scenarios in a few words, and what their passes move and occupy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.documents import parse_yaml, yaml_text
from simoffload.models import Sequences
from simoffload.results import cause_text
from simoffload.scenario import LoadedScenario, resolve
from simoffload.schedule import Schedule
from simoffload.strategies.base import memory_stages

BATCH, PROMPT = 4, 1000
KINDS: dict[str, dict[str, Any]] = {
    "resident": {"kind": "transformers"},
    "accelerate": {"kind": "accelerate", "device_map": "cuda"},
    "deepspeed": {"kind": "deepspeed", "weights": "hbm"},
}
OFFLOADED = {"tier": "dram"}
STATIC = {"tier": "dram", "implementation": "static"}
ON_CPU = {"tier": "dram", "implementation": "cpu_attention"}
COMPILED: dict[str, Any] = {"kind": "vllm"}
VLLM: dict[str, Any] = {"kind": "vllm"}


def streamed(tier: str = "raid", form: str | None = None) -> dict[str, Any]:
    return {"tier": tier, "implementation": "streamed"} | ({} if form is None else {"format": form})


def text(*, model: Any = "llama-3.1-8b", steps: int = 3, platform: str = "dgx-h200", **keys: Any) -> str:
    """Return a scenario, with ``cache`` as section of its strategy, and other keys for its work."""
    strategy = dict(keys.pop("strategy", KINDS["resident"]))
    if (section := keys.pop("cache", None)) is not None:
        strategy["kv_cache"] = section
    work = {"batch_size": BATCH, "prompt_length": PROMPT, "output_length": steps + 1} | keys
    content = {"name": "small", "model": model, "platform": platform, "workload": work}
    return yaml_text({**content, "strategy": strategy})


def scenario(**keys: Any) -> LoadedScenario:
    return resolve(parse_yaml(text(**keys), name="s.yaml"))


class Moved(NamedTuple):
    """An operation of a pass on the first rank."""

    stream: str
    kind: str
    label: str
    way: str
    size: int


def operations(found: LoadedScenario, *batch: Sequences) -> list[Moved]:
    """Return the operations of a pass in the order of writing."""
    schedule = found.plan().step(batch).schedule({})  # type: ignore[attr-defined]
    ways = [cause_text(one.cause) for one in schedule.routes]
    return [
        Moved(schedule.streams[op.stream], op.kind, op.label, ways[op.route] if op.size else "", op.size)
        for block in schedule.blocks
        for _ in range(block.repeat)
        for op in block.ops
    ]


def moved(found: LoadedScenario, way: str, *, new: int, context: int) -> tuple[int, int]:
    """Return the bytes of the cache that a pass moves to the GPU and back; ``way`` says how, such as ""."""
    ops = operations(found, Sequences(found.scenario.workload.batch_size, new, context))
    sizes = [
        sum(one.size for one in ops if one.way == f"{there}{way} (key-value cache on dram)")
        for there in ("host to GPU", "GPU to host")
    ]
    return sizes[0], sizes[1]


def bytes_of(schedule: Schedule, kind: str, label: str = "") -> int:
    """Return the bytes that the operations of a kind, with a label that begins so, move on a rank."""
    ops = [(op, block.repeat) for block in schedule.blocks for op in block.ops]
    return sum(op.size * times for op, times in ops if op.kind == kind and op.label.startswith(label))


def decode(**keys: Any) -> Any:
    """Return the first decode step of a simulation."""
    result: Any = so.simulate(scenario(**keys))
    return next(one for one in result.passes if one.name == "decode 1")


def terms(**keys: Any) -> dict[tuple[str, str], int]:
    """Return the parts of memory by tier and name."""
    (stage,) = memory_stages(scenario(**keys).plan())
    return {(one.tier, one.name): one.size for one in stage.terms}


def refused(written: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the only line that ``run`` prints about a scenario that it refuses."""
    (folder / "s.yaml").write_text(written)
    assert main(["run", str(folder / "s.yaml")]) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert (out, line.count("error:")) == ("", 1)
    return str(line)
