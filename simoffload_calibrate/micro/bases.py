"""Shipped platforms that give the numbers which a measurement of the same GPU cannot give."""

from __future__ import annotations

from simoffload.hardware import Library
from simoffload_calibrate.micro.plan import refusal

_BASES = (
    ("GH200", "gh200"),
    ("H200", "dgx-h200"),
    ("H20", "hgx-h20"),
    ("H800", "hgx-h800"),
    ("H100 NVL", "h100-2nvme"),
    ("H100", "dgx-h100"),
    ("A100-SXM4-80GB", "dgx-a100-80g"),
    ("A100-SXM4-40GB", "dgx-a100"),
    ("A100 80GB PCIe", "a100-4nvme"),
    ("A100-PCIE-40GB", "a100-4nvme"),
    ("V100-SXM", "dgx-2"),
    ("L40S", "l40s-workstation"),
    ("RTX 2080", "rtx-2080-desktop"),
    ("RTX 3070 Ti", "rtx-3070-ti-desktop"),
    ("RTX 3090", "rtx-3090-workstation"),
    ("RTX 4090", "rtx-4090-desktop"),
    ("RTX 5090", "rtx-5090-workstation"),
    ("RTX PRO 6000 Blackwell", "xinnor-workstation"),
    ("MI300X", "mi300x-8gpu"),
    ("GB10", "dgx-spark"),
)
"""Part of the name that CUDA gives a GPU, and the shipped platform with such a GPU."""

_ONE_GPU = {"dgx-h100": "h100-1gpu-vm", "dgx-h200": "h200-1gpu-vm"}
"""The shipped virtual machine with one of the GPUs of a platform."""


def base_platform(gpu: str, named: str | None = None, *, gpus: int | None = None) -> str:
    """The platform that gives what was not measured: the one ``named``, else one with such a GPU.

    ``gpu`` is the name that CUDA gives it, empty where there is none. With ``gpus``, their number on the
    machine, it is the shipped machine most like that one: with one GPU a virtual machine instead of a DGX.

    Raises InputError where there is none.
    """
    if named is not None:
        return named
    if not gpu:
        raise refusal(
            "--from", "missing: no GPU was measured; name a platform that provides one, or a file of detect"
        )
    for part, platform in _BASES:
        if part in gpu:
            return _ONE_GPU.get(platform, platform) if gpus == 1 else platform
    known = ", ".join(one.id for one in Library().summaries("platform"))
    text = (
        f'missing: no shipped platform has the GPU "{gpu}"; name one of {known}, or the file of this machine'
    )
    raise refusal("--from", f"{text} that simoffload detect -o FILE writes")
