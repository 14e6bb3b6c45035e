"""The text of a cause of time, for reports and files; it is made here alone and never read back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from simoffload.hardware import TimeInput, repeated_reads
from simoffload.schedule import Cause, CauseKind, HostMemory

_TEXTS: Mapping[CauseKind, str] = {
    "host-thread": "host thread",
    "update-wait": "waiting for the CPU update",
    "gpu-compute": "GPU compute",
    "gpu-optimizer": "optimizer on the GPU",
    "gpu-gradients": "gradients on the GPU",
    "gathered-copies": "GPU copies of gathered tensors",
    "in-place": TimeInput.IN_PLACE,
    "host-to-gpu": "host to GPU",
    "gpu-to-host": "GPU to host",
    "gpu-to-gpu": "GPU {} to GPU {}",
    "stage-to-stage": "stage to stage",
    "all-gather": "all-gather",
    "all-reduce": "all-reduce",
    "gradient-reduction": "reduction of gradients",
    "broadcast": "broadcast",
    "column-broadcast": "broadcast of selected columns",
    "read": "read",
    "write": "write",
    "mapped-copies": "copying mapped files",
    "host-copies": "copies in host memory",
    "new-pages": "new pages for copies",
    "new-pinned-memory": "new pinned memory",
    "page-cache-entry": "entering the page cache",
    "crc32": "crc32",
    "cpu-work": "CPU work",
    "cpu-adam": "CPU Adam",
    "cpu-adamw": "CPU AdamW of PyTorch",
    "cpu-casts": "CPU casts and scaling",
    "cpu-overflow-check": "CPU overflow check",
    "cpu-attention": "attention on the CPU",
    "cpu-products": "CPU compute",
    "cache-stores": "storing keys and values",
    "tensor-loops": "loops over tensors",
    "to-io-buffer": "into the I/O buffer",
    "to-array": "into a NumPy array",
    "to-snapshot": "into the snapshot",
    "to-optimizer": "into the optimizer",
    "to-page-cache": "into the page cache",
    "from-page-cache": "from the page cache",
    "file-to-file": "from file to file",
    "own": "",
}
_MEMORY: Mapping[HostMemory, str] = {
    "pinned": "",
    "pageable": ", pageable",
    "never written": ", pageable, never written",
}


@lru_cache(maxsize=1024)
def cause_text(cause: Cause) -> str:
    """Return a cause as text, such as "raid read" or "GPU to host (key-value cache on dram)"."""
    way = f"{_way(cause)}{_MEMORY[cause.memory]}"
    where = f" on {cause.tier}" if cause.moves_cache else ""
    return f"{way} ({cause.purpose}{where})" if cause.purpose else way


def _way(cause: Cause) -> str:
    """Return the kind of a cause as text, with the tier, the GPUs or the readings that belong to it."""
    text = _TEXTS[cause.kind]
    match cause.kind:
        case "own":
            return cause.name
        case "read" | "write":
            return f"{cause.tier or 'storage'} {text}"
        case "gpu-to-gpu":
            return text.format(*cause.gpus)
        case "in-place":
            return repeated_reads(cause.readings) if cause.readings else text
    return " ".join((text, *map(str, cause.gpus)))
