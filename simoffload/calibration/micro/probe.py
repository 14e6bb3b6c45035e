"""The process that says what PyTorch sees: ``python -m simoffload.calibration.micro.probe FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

__all__ = ["main"]


def main(path: str) -> int:
    """Write versions, and the GPUs or null, as JSON."""
    data = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "nccl": _nccl(), "gpu": _gpu()}
    Path(path).write_text(json.dumps(data), encoding="utf-8")
    return 0


def _nccl() -> str | None:
    if not torch.cuda.is_available():
        return None
    version: Any = torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _gpu() -> dict[str, Any] | None:
    if not torch.cuda.is_available():
        return None
    properties: Any = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "count": torch.cuda.device_count(),
        "memory": properties.total_memory,
        "l2": getattr(properties, "L2_cache_size", None),
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
