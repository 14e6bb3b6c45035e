"""This module predicts kernels of GPUs that aiconfigurator measured and that made no profile.

``kernels/products.csv`` has a sample, drawn by a hash, of the products with odd crc32("n,k,format");
``experts.csv`` and ``attention.csv`` have samples of the calls of experts and attention with an odd crc32 of
their sizes (``exchange.aiconfigurator``), without experts of models that would be read faster than memory
gives. All are times of short bursts (Apache-2.0, hardware_profiles/accelerator/NOTICE-aiconfigurator).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from simoffload.hardware import Accelerator, Library
from simoffload_calibrate.importers.aiconfigurator import DTYPES, KernelCall, calls_of

__all__ = ["KernelClass", "call_classes", "judging_calls", "product_classes"]

_FOLDER = Path(__file__).parent / "kernels"
_TYPES = {"bfloat16": "bfloat16", "fp8": "float8", "nvfp4": "float4"}
_SIZES = ((64, "decode, up to 64 rows"), (512, "65 to 512 rows"), (1 << 30, "prefill, more than 512 rows"))


class KernelClass(NamedTuple):
    """A KernelClass is the errors of the products, or other kernels, of a GPU, a format and a range of
    sizes."""

    gpu: str
    form: str
    """Format of products, or the key of ``compiled`` that predicts."""
    size: str
    errors: tuple[float, ...]
    """Predicted over measured time, less 1."""

    @property
    def mean(self) -> float:
        """The mean of the absolute errors."""
        return fmean(map(abs, self.errors))

    @property
    def bias(self) -> float:
        """The mean of the errors."""
        return fmean(self.errors)


def product_classes() -> tuple[KernelClass, ...]:
    """Return the errors of all classes of products, by GPU, format and rows."""
    return _classes(_errors())


def call_classes() -> tuple[KernelClass, ...]:
    """Return the errors of all classes of experts and attention, by GPU, key and size."""
    return _classes(_call_errors())


_Error = tuple[tuple[str, str, str], float]


def _classes(errors: Iterator[_Error]) -> tuple[KernelClass, ...]:
    found: dict[tuple[str, str, str], list[float]] = {}
    for key, error in errors:
        found.setdefault(key, []).append(error)
    return tuple(KernelClass(*key, tuple(each)) for key, each in sorted(found.items()))


def _rows(name: str) -> Iterator[tuple[Accelerator, dict[str, str]]]:
    library, gpus = Library(), dict[str, Accelerator]()
    with (_FOLDER / name).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] not in gpus:
                profile = library.find(row["gpu"], ("accelerator",)).profile
                assert isinstance(profile, Accelerator)
                gpus[row["gpu"]] = profile
            yield gpus[row["gpu"]], row


def judging_calls() -> Iterator[tuple[Accelerator, KernelCall, str]]:
    """Yield the GPU, the call and the class of size of each row of experts and attention."""
    for gpu, row in _rows("experts.csv"):
        for one in calls_of("moe", row, gpu):
            yield gpu, one, _size(int(row["num_tokens"]), "tokens", (64, 512))
    for gpu, row in _rows("attention.csv"):
        prompt = row["op_name"] == "context_attention"
        for one in calls_of("context" if prompt else "generation", row, gpu):
            if prompt:
                yield gpu, one, _size(round(one.work.rows), "keys of a token", (256, 1024))
            else:
                yield gpu, one, _size(int(row["batch_size"]), "sequences", (4, 64))


def _size(number: int, what: str, bounds: tuple[int, int]) -> str:
    low, high = bounds
    if number > high:
        return f"more than {high:,} {what}"
    return f"up to {low} {what}" if number <= low else f"{low + 1} to {high:,} {what}"


def _call_errors() -> Iterator[_Error]:
    for gpu, one, size in judging_calls():
        table = getattr(gpu.compiled, one.key)
        if table is not None:
            dtype = DTYPES.get(one.key, "bfloat16")
            predicted = gpu.table_s(table, one.work, dtype=dtype, bursts=True)
            yield (gpu.id, one.key, size), predicted / one.seconds - 1


def _errors() -> Iterator[_Error]:
    for gpu, row in _rows("products.csv"):
        rows, outputs, inputs = (int(row[key]) for key in ("rows", "outputs", "inputs"))
        predicted = gpu.product_s(
            rows=rows, outputs=outputs, inputs=inputs, dtype=_TYPES[row["format"]], size=2, bursts=True
        )
        assert predicted is not None, row["gpu"]
        size = next(name for most, name in _SIZES if rows <= most)
        yield (row["gpu"], row["format"], size), predicted / (float(row["us"]) * 1e-6) - 1


if __name__ == "__main__":
    for one in (*product_classes(), *call_classes()):
        print(  # noqa: T201
            f"{one.gpu} | {one.form} | {one.size} | {len(one.errors)} | {one.mean:.1%} | {one.bias:+.1%}"
        )
