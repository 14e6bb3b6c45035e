"""This module predicts products of GPUs that aiconfigurator measured and that made no profile.

``kernels/products.csv`` has every product of a sample, drawn by a hash, of those with odd crc32("n,k,format")
(Apache-2.0, hardware_profiles/accelerator/NOTICE-aiconfigurator): times of short bursts.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from simoffload.hardware import Accelerator, Library

__all__ = ["ProductClass", "product_classes"]

_FILE = Path(__file__).parent / "kernels" / "products.csv"
_TYPES = {"bfloat16": "bfloat16", "fp8": "float8"}
_SIZES = ((64, "decode, up to 64 rows"), (512, "65 to 512 rows"), (1 << 30, "prefill, more than 512 rows"))


class ProductClass(NamedTuple):
    """A ProductClass is the errors of the products of a GPU, a format and a range of rows."""

    gpu: str
    form: str
    rows: str
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


def product_classes() -> tuple[ProductClass, ...]:
    """Return the errors of all classes, by GPU, format and rows."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for key, error in _errors():
        found.setdefault(key, []).append(error)
    return tuple(ProductClass(*key, tuple(errors)) for key, errors in found.items())


def _errors() -> Iterator[tuple[tuple[str, str, str], float]]:
    library, gpus = Library(), dict[str, Accelerator]()
    with _FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] not in gpus:
                profile = library.find(row["gpu"], ("accelerator",)).profile
                assert isinstance(profile, Accelerator)
                gpus[row["gpu"]] = profile
            rows, outputs, inputs = (int(row[key]) for key in ("rows", "outputs", "inputs"))
            predicted = gpus[row["gpu"]].product_s(
                rows=rows, outputs=outputs, inputs=inputs, dtype=_TYPES[row["format"]], size=2, bursts=True
            )
            assert predicted is not None, row["gpu"]
            size = next(name for most, name in _SIZES if rows <= most)
            yield (row["gpu"], row["format"], size), predicted / (float(row["us"]) * 1e-6) - 1


if __name__ == "__main__":
    for one in product_classes():
        print(  # noqa: T201
            f"{one.gpu} | {one.form} | {one.rows} | {len(one.errors)} | {one.mean:.1%} | {one.bias:+.1%}"
        )
