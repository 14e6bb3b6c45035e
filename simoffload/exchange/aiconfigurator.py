"""Tables of products of vLLM that aiconfigurator measured, as the tables of an accelerator's profile.

A system's folder has ``gemm/vllm/<version>/gemm_perf.parquet`` with a row for each product of ``m`` rows,
``n`` outputs and ``k`` inputs: its time in a short burst [ms]. Half of the products make the profile and the
others judge it (``is_input``).
"""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.documents import file_errors
from simoffload.errors import InputError, printable
from simoffload.hardware import Accelerator, together

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Product", "is_input", "product_numbers", "read_products"]

_TABLE = "gemm/vllm/*/gemm_perf.parquet"
_COLUMNS = {"device": str, "gemm_dtype": str, "m": int, "n": int, "k": int, "latency": float}
_FORMATS = {"bfloat16": ("product_table", "bfloat16"), "fp8": ("float8_product_table", "float8")}
"""Keys of ``compiled`` and data types of arithmetic, by the formats that programs here have. Times of
``fp8_block`` hardly differ below 1,000 rows, 56 to 62 us, and are those of launches."""
_MOST_ROWS = 5_000_000
_LONGEST = 10.0
"""[s] The longest product of a table that is plausible; the largest one of an A100 takes 0.4."""
_WIDTHS = (64, 256, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536)
"""Widths of the table of a profile; those of the tables that are between follow within its errors."""
_ROWS = (
    *(1, 2, 4, 8, 16, 17, 32, 33, 48, 64, 65, 80, 96, 128, 129, 160, 192, 193, 256, 257, 384, 512, 513, 768),
    *(1024, 1025, 1536, 1537, 2048, 2049, 4096, 4097, 8192, 32768),
)
"""Rows of the table of a profile, as far as they were measured."""
_SMOOTH = 0.1
"""Weight of the squared second differences between neighbouring widths, beside the squared errors of
logarithms: it gives products in the table that no measured one is near (our choice)."""
_LEAST = 30
"""Fewest products of a number of rows from which a part of the table follows (our choice)."""
_SHARE_MOST = 9999


class Product(NamedTuple):
    """A Product is a row of a table."""

    device: str
    form: str
    """Format of the weights: bfloat16, fp8, …"""
    rows: int
    outputs: int
    inputs: int
    seconds: float


def is_input(outputs: int, inputs: int, form: str) -> bool:
    """Return whether products of that size make profiles; the others judge them."""
    return zlib.crc32(f"{outputs},{inputs},{form}".encode()) % 2 == 0


def read_products(folder: str | Path) -> tuple[Product, ...]:
    """Read the products of a system's folder, those of the newest vLLM. Raises InputError if there are none,
    for a file that is no such table, and without pyarrow."""
    place = Path(folder)
    if not place.is_dir():
        raise _refusal(place, "is no folder; name that of a system, such as a100_sxm, which has gemm/vllm")
    files = sorted(place.glob(_TABLE), key=lambda one: _version(one.parent.name))
    if not files:
        systems = sorted(one.parents[3].name for one in place.glob(f"*/{_TABLE}"))
        text = f"name one of {', '.join(systems)} in it" if systems else "is it the folder of a system?"
        raise _refusal(place, f"has no {_TABLE}; {text}")
    return tuple(_products(files[-1]))


def _refusal(path: Path, text: str) -> InputError:
    return InputError.at("", text, path=str(path))


def _version(text: str) -> list[int]:
    return [int(one) if one.isdecimal() else 0 for one in text.split(".")]


def _products(path: Path) -> Iterator[Product]:
    try:
        from pyarrow import parquet
    except ImportError:
        text = "Parquet needs pyarrow; install it with: pip install 'simoffload[parquet]'"
        raise _refusal(path, text) from None
    with file_errors(path):
        table = parquet.ParquetFile(path)
    if table.metadata.num_rows > _MOST_ROWS:
        raise _refusal(path, f"has {table.metadata.num_rows:,} rows; at most {_MOST_ROWS:,} are read")
    if missing := [one for one in _COLUMNS if one not in table.schema_arrow.names]:
        raise _refusal(path, f"has no column {', '.join(missing)}; is it a table of gemm?")
    with file_errors(path):
        columns = table.read(columns=list(_COLUMNS)).to_pydict()
    for index, row in enumerate(zip(*columns.values(), strict=True)):
        for (key, kind), value in zip(_COLUMNS.items(), row, strict=True):
            if not isinstance(value, kind) or (
                isinstance(value, int | float) and not 0 < value < float("inf")
            ):
                wanted = {str: "a text", int: "a whole number above 0", float: "a time above 0"}[kind]
                raise _refusal(path, f"row {index + 1}, {key}: {value!r:.60} is not {wanted}")
        device, form, rows, outputs, inputs, milliseconds = row
        if milliseconds > _LONGEST * 1e3:
            raise _refusal(path, f"row {index + 1}, latency: {milliseconds:.6g} ms is not that of a product")
        yield Product(device, form, rows, outputs, inputs, milliseconds / 1e3)


def product_numbers(products: Sequence[Product], base: Accelerator, *, source: str) -> dict[str, Any]:
    """Return the tables of ``compiled`` that products give, whose ideal times are those of ``base``."""
    found: dict[str, Any] = {}
    for form, (key, dtype) in _FORMATS.items():
        chosen = [one for one in products if one.form == form and is_input(one.outputs, one.inputs, form)]
        if not chosen or getattr(base.compute, dtype) is None:
            continue
        shares = [(rows, text) for rows in _ROWS if (text := _shares(chosen, rows, base, dtype))]
        if len(shares) < 2:
            raise InputError.at("", f"{form}: too few rows were measured for a table", path=source)
        found[key] = {
            "value": 1.0,
            "outputs": list(_WIDTHS),
            "inputs": list(_WIDTHS),
            "shares": [[rows, text] for rows, text in shares],
            "origin": "measured",
            "source": printable(
                f"{source}: {chosen[0].device}, {form}, {len(chosen)} products of sizes with even "
                "crc32(n,k,format), each in a short burst; smoothed between the widths"
            ),
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        }
    if not found:
        known = ", ".join(sorted({one.form for one in products}))
        raise InputError.at(
            "", f"has products in {known}; {base.id} takes {', '.join(_FORMATS)}", path=source
        )
    return found


def _shares(products: Sequence[Product], rows: int, base: Accelerator, dtype: str) -> str:
    """Return the shares of the ideal speed for so many rows, in thousandths; "" if they were not measured.

    The logarithm is bilinear between the widths; least squares with smoothed second differences.
    """
    import numpy as np

    measured = [one for one in products if one.rows == rows]
    if len(measured) < _LEAST:
        return ""
    logs = np.log([_ideal_s(one, base, dtype) / one.seconds for one in measured])
    outputs, inputs = (_weights([getattr(one, key) for one in measured]) for key in ("outputs", "inputs"))
    weights = (outputs[:, :, None] * inputs[:, None, :]).reshape(len(measured), -1)
    size = len(_WIDTHS)
    bends, alone = _bends(), np.eye(size)
    smooth = np.concatenate([np.kron(bends, alone), np.kron(alone, bends)])
    square = weights.T @ weights + _SMOOTH * smooth.T @ smooth + 1e-6 * np.eye(size * size)
    shares = np.exp(np.linalg.solve(square, weights.T @ logs)) * 1000
    return " ".join(str(min(_SHARE_MOST, max(1, round(float(one))))) for one in shares)


def _ideal_s(one: Product, base: Accelerator, dtype: str) -> float:
    each = 1 if dtype == "float8" else 2
    traffic = each * one.inputs * (one.outputs + one.rows) + 2 * one.rows * one.outputs
    work = 2 * one.rows * one.outputs * one.inputs
    seconds = together(traffic / base.hbm_bandwidth.value, work / base.peak(dtype))
    return seconds + (base.compiled.kernel_latency or base.kernel_latency).value


def _weights(widths: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the part that each width of the table has in each of these."""
    import numpy as np

    grid, logs = np.log2(_WIDTHS), np.log2(widths)
    return np.stack([np.interp(logs, grid, one) for one in np.eye(len(_WIDTHS))], axis=1)


def _bends() -> npt.NDArray[np.float64]:
    """Return the second differences at the inner widths."""
    import numpy as np

    steps = np.diff(np.log2(_WIDTHS))
    found = np.zeros((len(_WIDTHS) - 2, len(_WIDTHS)))
    for index, (before, after) in enumerate(pairwise(steps)):
        found[index, index : index + 3] = (1 / before, -1 / before - 1 / after, 1 / after)
    return found
