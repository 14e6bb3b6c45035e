"""The knobs of parameter offload, resolved: the version's defaults and Hugging Face's "auto" applied.

Versions in which a default or a name changed are said where they matter.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from simoffload.documents import quoted
from simoffload.errors import InputError, Problem
from simoffload.strategies.ds_config.sections import (
    AioSection,
    DeepSpeedConfig,
    OffloadParamSection,
)
from simoffload.strategies.ds_config.unsupported_keys import key_warnings, refuse_keys

__all__ = [
    "FIRST_INTRA_OP",
    "LATEST",
    "OffloadSettings",
    "fetch_settings",
    "parse_version",
    "resolve_settings",
    "values",
]

LATEST = "0.19.8"
_FIRST_GDS = (0, 15, 0)
FIRST_INTRA_OP = (0, 16, 4)
"""Since then ``aio.thread_count`` is called ``intra_op_parallelism`` (DeepSpeed's commit c9da489)."""


_STAGE_3 = {
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "model_persistence_threshold": "stage3_model_persistence_threshold",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
}
"""What ds_config calls the settings of stage 3."""
_ALIGNED = 1024
"""[B] to which each aio thread's part of a file is padded (``AIO_ALIGNED_BYTES``, swap_tensor/utils.py)."""


class OffloadSettings(NamedTuple):
    """The resolved knobs of one run."""

    version: tuple[int, ...]
    device: Literal["none", "cpu", "nvme"] | None
    """As configured; None = the configuration does not say."""
    prefetch_bucket_size: int
    """[elements]"""
    max_live_parameters: int
    """[elements]"""
    max_reuse_distance: int
    """[elements]"""
    param_persistence_threshold: int
    """[elements]"""
    model_persistence_threshold: int
    """[elements]"""
    overlap_comm: bool
    """False puts copies and gathers on the stream of the kernels."""
    pin_memory: bool
    buffer_count: int
    buffer_size: int
    """[elements]"""
    max_in_cpu: int
    """[elements] of parameters that training keeps in host memory though they belong on storage."""
    block_size: int
    """[B]"""
    queue_depth: int
    threads: int
    """Worker threads of one aio handle (``intra_op_parallelism``)."""
    use_gds: bool

    def copies_directly(self, ranks: int) -> bool:
        """One rank copies its parameters asynchronously and gathers nothing; before DeepSpeed 0.9.0 even
        one rank made blocking copies and an all-gather with itself (pull request 2953)."""
        return ranks == 1 and self.version >= (0, 9, 0)

    @property
    def swap_buffers_pinned(self) -> bool:
        """Whether CUDA knows the swap buffers; since DeepSpeed 0.19.4 they are only locked in memory (pull
        request 8212), and copies from them go at the pace of pageable memory."""
        return self.version < (0, 19, 4)

    def source(self, on_nvme: bool) -> bool | None:
        """Whether a partition is copied from pinned memory; None if it is not copied, being read by GPUDirect
        Storage into the GPU's."""
        if not on_nvme:
            return self.pin_memory
        return None if self.use_gds else self.swap_buffers_pinned

    @property
    def min_swap_bytes(self) -> int:
        """[B] slices smaller than this stay in host memory (partitioned_param_swapper.py)."""
        return max(1 << 20, self.block_size)

    @property
    def outstanding_bytes(self) -> int:
        """[B] the most that one rank has in flight to storage."""
        return self.block_size * self.queue_depth * self.threads

    @property
    def config(self) -> dict[str, dict[str, Any]]:
        """What ds_config would say, by the section."""
        threads = "intra_op_parallelism" if self.version >= FIRST_INTRA_OP else "thread_count"
        stage_3 = {key: getattr(self, name) for name, key in _STAGE_3.items()}
        return {
            "zero_optimization": {"overlap_comm": self.overlap_comm, **stage_3},
            "offload_param": values(self, "pin_memory", "buffer_count", "buffer_size", "max_in_cpu"),
            "aio": {
                **values(self, "block_size", "queue_depth"),
                threads: self.threads,
                "use_gds": self.use_gds,
            },
        }

    @property
    def alignment(self) -> int:
        """[B] of which every file and swap buffer is a multiple."""
        return _ALIGNED * self.threads

    def aligned(self, size: int) -> int:
        """[B] that a file or swap buffer of ``size`` takes: whole units of every aio thread."""
        return -(-size // self.alignment) * self.alignment


def values(settings: NamedTuple, *names: str) -> dict[str, Any]:
    """Those of the settings that ds_config calls by the same names."""
    return {name: getattr(settings, name) for name in names}


def parse_version(text: str) -> tuple[int, ...]:
    """Turn "0.16.4" into (0, 16, 4); ValueError if it is no such thing."""
    parts = text.split(".")
    if not 2 <= len(parts) <= 4 or not all(part.isdigit() and len(part) < 5 for part in parts):
        raise ValueError(f'{quoted(text)} is not a DeepSpeed version; write e.g. "0.16.4"')
    return tuple(int(part) for part in parts)


def _threads(aio: AioSection, version: tuple[int, ...], warnings: list[str]) -> int:
    """Of the two names the one that the version does not know is silently ignored."""
    renamed = version >= FIRST_INTRA_OP
    value, other = (
        (aio.intra_op_parallelism, aio.thread_count)
        if renamed
        else (aio.thread_count, aio.intra_op_parallelism)
    )
    if other is not None:
        wrong, right = (
            ("thread_count", "intra_op_parallelism") if renamed else ("intra_op_parallelism", "thread_count")
        )
        warnings.append(
            f"ds_config aio.{wrong}: {other} is ignored by DeepSpeed {'.'.join(map(str, version))}, "
            f"which reads aio.{right}; it runs {value or 1} thread(s)"
        )
    return value or 1


def resolve_settings(
    config: DeepSpeedConfig, *, version: str = LATEST, hidden_size: int
) -> tuple[OffloadSettings, tuple[str, ...]]:
    """Apply the version's defaults and Hugging Face's "auto" rules; return settings and warnings.

    Raises ValueError for what is no version and InputError, with DeepSpeed's key, for a stage that does not
    offload parameters and for keys that would make the answer far off.
    """
    stage = config.zero_optimization.stage
    if stage != 3:
        text = f"{stage} does not offload parameters; ZeRO-Inference needs 3"
        raise InputError([Problem("", None, None, "zero_optimization.stage", text)])
    refuse_keys(config, training=False)
    settings, warnings = fetch_settings(config, version=version, hidden_size=hidden_size)
    return settings, (*key_warnings(config, training=False), *warnings)


def fetch_settings(
    config: DeepSpeedConfig, *, version: str, hidden_size: int
) -> tuple[OffloadSettings, tuple[str, ...]]:
    """The knobs of stage 3, which say nothing below it, and warnings about what the version makes of them.

    Raises ValueError for what is no version. "auto" follows transformers' integration: prefetch 0.9 h^2,
    persistence 10 h; other keys fall back to DeepSpeed's default.
    """
    number = parse_version(version)
    zero, aio = config.zero_optimization, config.aio
    offload = zero.offload_param or OffloadParamSection()
    auto = {
        "stage3_prefetch_bucket_size": int(0.9 * hidden_size * hidden_size),
        "stage3_param_persistence_threshold": 10 * hidden_size,
    }

    def pick(section: BaseModel, key: str) -> int:
        value = getattr(section, key)
        return int(auto.get(key, type(section).model_fields[key].default) if value == "auto" else value)

    warnings: list[str] = []
    if "aio" in config.model_fields_set and (aio.single_submit or not aio.overlap_events):
        warnings.append("ds_config aio.single_submit / overlap_events: not modelled; a full queue is assumed")
    if aio.use_gds and number < _FIRST_GDS:
        warnings.append(f"ds_config aio.use_gds is ignored by DeepSpeed {version}; it came with 0.15.0")
    if number > parse_version(LATEST):
        warnings.append(f"DeepSpeed {version} is newer than {LATEST}, the last that was studied")
    threads = _threads(aio, number, warnings)
    pin = offload.pin_memory if offload.pin_memory is not None else number >= (0, 19, 5)
    settings = OffloadSettings(
        version=number,
        device=offload.device,
        **{name: pick(zero, key) for name, key in _STAGE_3.items()},
        overlap_comm=zero.overlap_comm is not False,
        pin_memory=pin,
        buffer_count=offload.buffer_count,
        buffer_size=pick(offload, "buffer_size"),
        max_in_cpu=pick(offload, "max_in_cpu"),
        block_size=aio.block_size,
        queue_depth=aio.queue_depth,
        threads=threads,
        use_gds=aio.use_gds and number >= _FIRST_GDS,
    )
    return settings, tuple(warnings)
