"""Tables of vLLM's kernels that aiconfigurator measured, as the tables of an accelerator's profile.

A system's folder has Parquet files of products (``gemm``), experts (``moe``), attention (``attention``) and
collectives (``comm``), with a row for each call: its sizes, and its time in a short burst [ms]. Half of the
sizes make the profile and the others judge it (``is_input``).
"""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.documents import file_errors
from simoffload.errors import InputError, printable
from simoffload.hardware import (
    STORED_BYTES,
    Accelerator,
    Attended,
    AttentionSizes,
    KernelWork,
    decode_work,
    prefill_work,
    product_work,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "DTYPES",
    "KernelCall",
    "calls_of",
    "check_folder",
    "is_input",
    "kernel_numbers",
    "lent_calls",
    "possible",
    "read_calls",
    "read_reduces",
    "reduce_numbers",
]

_MOST_ROWS = 5_000_000
_LONGEST = 10.0
"""[s] The longest call of a table that is plausible; the largest product of an A100 takes 0.4."""
_SMOOTH = 0.1
"""Weight of the squared second differences between neighbouring points, beside the squared errors of
logarithms: it gives sizes in the table that no measured one is near (our choice)."""
_LEAST = 30
"""Fewest calls from which a part of a table follows (our choice)."""
_SHARE_MOST = 9999
_LARGE = 300e6
"""[B] Bytes of weights that no cache holds."""


class KernelCall(NamedTuple):
    """A KernelCall is a row of a table: kernels of a key of ``compiled``, their work and their time."""

    device: str
    key: str
    sizes: str
    """The columns that say whether it makes profiles, as text: "n,k,format" of a product."""
    work: KernelWork
    seconds: float
    model: str = ""
    """Of experts the sizes that their widths on several GPUs have in common."""


def is_input(sizes: str) -> bool:
    """Return whether calls with these sizes make profiles; the others judge them."""
    return zlib.crc32(sizes.encode()) % 2 == 0


# -- the files of a system -------------------------------------------------------------------------


class _File(NamedTuple):
    """A _File is a kind of file: where it is, its columns, and how a row becomes calls."""

    place: str
    columns: Mapping[str, type]
    calls: Callable[[Accelerator, tuple[Any, ...]], Iterator[KernelCall]]


_PRODUCT_KEYS = {
    "bfloat16": "product_table",
    "fp8": "float8_product_table",
    "nvfp4": "float4_product_table",
}
"""Keys of ``compiled`` by the formats that programs here have. Times of ``fp8_block`` hardly differ below
1,000 rows, 56 to 62 us, and are those of launches."""
DTYPES = {
    "float8_product_table": "float8",
    "float8_expert_table": "float8",
    "float4_product_table": "float4",
}
"""Data types of arithmetic by key; of others bfloat16."""


def _product(_base: Accelerator, row: tuple[Any, ...]) -> Iterator[KernelCall]:
    device, form, rows, outputs, inputs, milliseconds = row
    if form in _PRODUCT_KEYS:
        key = _PRODUCT_KEYS[form]
        weight = STORED_BYTES.get(DTYPES.get(key, ""), 2)
        work = product_work(rows=rows, outputs=outputs, inputs=inputs, weight=weight, size=2)
        yield KernelCall(device, key, f"{outputs},{inputs},{form}", work, milliseconds / 1e3)


class _Experts(NamedTuple):
    """An _Experts is a format of experts: its key of ``compiled``, and bytes of a weight."""

    key: str
    weight: float
    kernels: int = 4
    """Two that sort tokens, and two products."""
    activates: bool = False
    """Whether the first product contains the activation."""


_EXPERTS = {
    "bfloat16": _Experts("expert_table", 2),
    "fp8_block": _Experts("float8_expert_table", 1 + 4 / 128**2),
    "w4a16_mxfp4": _Experts("mxfp4_expert_table", 0.5 + 1 / 32, 5, activates=True),
}
"""Formats of experts. Not read: ``fp8``, whose calls read weights at a sixth of the bandwidth (FlashInfer
without tuning), and ``int4_wo``, of which no more than six sizes were measured."""
_ALIGNED = 16
"""Widths of experts that are no multiple take about twice as long, and are not read."""


def _experts(base: Accelerator, row: tuple[Any, ...]) -> Iterator[KernelCall]:
    device, source, form, tokens, hidden, inner, each, number, tensor, parallel, distribution, time = row
    width, found = inner // tensor, _EXPERTS.get(form)
    known = found is not None and (not found.activates or "gptoss" in source)
    if not known or parallel != 1 or distribution != "balanced" or inner % tensor or width % _ALIGNED:
        return
    assert found is not None
    pairs = tokens * each
    chosen = min(number, pairs)
    traffic = 3 * chosen * hidden * width * found.weight + 2 * pairs * (2 * hidden + 3 * width)
    around = [2 * hidden * (pairs + tokens), *([] if found.activates else [2 * 3 * pairs * width])]
    latency = (base.compiled.kernel_latency or base.kernel_latency).value
    seconds = time / 1e3 - sum(around) / base.hbm_rate - len(around) * latency
    work = KernelWork(
        pairs / chosen, width, chosen, traffic, 6 * pairs * hidden * width, kernels=found.kernels
    )
    if seconds > 0:
        sizes, model = f"{hidden},{width},{each},{number},{form}", f"{hidden},{each},{number}"
        yield KernelCall(device, found.key, sizes, work, seconds, model)


_BY_TOKENS, _BY_SEQUENCES = "context_attention", "generation_attention"


def _attention(base: Accelerator, row: tuple[Any, ...]) -> Iterator[KernelCall]:
    device, kind, form, batch, new, before, heads, shared, width, window, time = row
    if form != "bfloat16":
        return
    sizes = AttentionSizes(heads, shared, width, window or None, 2)
    text = f"{heads},{shared},{width},{window},{form}"
    if kind == _BY_SEQUENCES:
        steps = [Attended(batch, 1, before + 1)]
        rows = base.compiled.least_rows
        work = decode_work(steps, sizes, least_rows=rows.value if rows else _ALIGNED)
        yield KernelCall(device, "decode_table", text, work, time / 1e3)
    else:
        yield KernelCall(
            device, "prefill_table", text, prefill_work([Attended(batch, new, new)], sizes), time / 1e3
        )


_ATTENTION: Mapping[str, type] = {
    "device": str,
    "op_name": str,
    "kv_cache_dtype": str,
    **dict.fromkeys(("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim"), int),
    "window_size": int,
    "latency": float,
}
_FILES = {
    "gemm": _File(
        "gemm/vllm/*/gemm_perf.parquet",
        {"device": str, "gemm_dtype": str, "m": int, "n": int, "k": int, "latency": float},
        _product,
    ),
    "moe": _File(
        "moe/vllm/*/moe_perf.parquet",
        {
            "device": str,
            "kernel_source": str,
            "moe_dtype": str,
            **dict.fromkeys(("num_tokens", "hidden_size", "inter_size", "topk", "num_experts"), int),
            **dict.fromkeys(("moe_tp_size", "moe_ep_size"), int),
            "distribution": str,
            "latency": float,
        },
        _experts,
    ),
    "context": _File(f"attention/vllm/*/{_BY_TOKENS}_perf.parquet", _ATTENTION, _attention),
    "generation": _File(f"attention/vllm/*/{_BY_SEQUENCES}_perf.parquet", _ATTENTION, _attention),
}
_ZERO = ("step", "window_size")
"""Columns whose numbers may be 0."""


def read_calls(folder: str | Path, base: Accelerator) -> tuple[KernelCall, ...]:
    """Read the calls of a system's folder, of each kind those of the newest vLLM. ``base`` gives the times of
    kernels around experts. Raises InputError if there are none, for a file that is no such table, and without
    pyarrow."""
    found = [
        call
        for one in _FILES.values()
        for path in _newest(folder, one.place)
        for row in _rows(path, one.columns)
        for call in one.calls(base, row)
    ]
    return tuple(found)


def calls_of(kind: str, row: Mapping[str, str], base: Accelerator) -> tuple[KernelCall, ...]:
    """Return the calls of a row, as text, of a kind of file ("gemm", "moe", "context", "generation")."""
    one = _FILES[kind]
    return tuple(one.calls(base, tuple(of_type(row[key]) for key, of_type in one.columns.items())))


def _newest(folder: str | Path, place: str) -> list[Path]:
    """Return the file of the newest version; none if there is no such file."""
    if not Path(folder).is_dir():
        raise _refusal(Path(folder), "is no folder; name that of a system, such as a100_sxm, which has gemm")
    files = sorted(Path(folder).glob(place), key=lambda one: _version(one.parent.name))
    return files[-1:]


def check_folder(folder: str | Path) -> None:
    """Raise InputError for a folder without any table."""
    places = [*(one.place for one in _FILES.values()), _REDUCES]
    if any(_newest(folder, place) for place in places):
        return
    systems = sorted({one.parents[3].name for place in places for one in Path(folder).glob(f"*/{place}")})
    text = f"name one of {', '.join(systems)} in it" if systems else "is it the folder of a system?"
    raise _refusal(Path(folder), f"has no {places[0]}; {text}")


def _refusal(path: Path, text: str) -> InputError:
    return InputError.at("", text, path=str(path))


def _version(text: str) -> list[int]:
    return [int(one) if one.isdecimal() else 0 for one in text.split(".")]


def _rows(path: Path, wanted: Mapping[str, type]) -> Iterator[tuple[Any, ...]]:
    """Yield the wanted columns of each row, the time last."""
    try:
        from pyarrow import parquet
    except ImportError:
        text = "Parquet needs pyarrow; install it with: pip install 'simoffload[parquet]'"
        raise _refusal(path, text) from None
    with file_errors(path):
        table = parquet.ParquetFile(path)
    if table.metadata.num_rows > _MOST_ROWS:
        raise _refusal(path, f"has {table.metadata.num_rows:,} rows; at most {_MOST_ROWS:,} are read")
    if missing := [one for one in wanted if one not in table.schema_arrow.names]:
        kind = path.stem.removesuffix("_perf")
        raise _refusal(path, f"has no column {', '.join(missing)}; is it a table of {kind}?")
    with file_errors(path):
        columns = table.read(columns=list(wanted)).to_pydict()
    for index, row in enumerate(zip(*columns.values(), strict=True)):
        for (key, of_type), value in zip(wanted.items(), row, strict=True):
            least = -1 if key in _ZERO else 0
            if not isinstance(value, of_type) or (
                isinstance(value, int | float) and not least < value < float("inf")
            ):
                number = f"a whole number {'of 0 or more' if key in _ZERO else 'above 0'}"
                named = {str: "a text", int: number, float: "a time above 0"}[of_type]
                raise _refusal(path, f"row {index + 1}, {key}: {value!r:.60} is not {named}")
        if row[-1] > _LONGEST * 1e3:
            raise _refusal(path, f"row {index + 1}, latency: {row[-1]:.6g} ms is not that of a kernel")
        yield row


# -- the tables of a profile -----------------------------------------------------------------------


class _Grid(NamedTuple):
    """A _Grid is the sizes of a table."""

    rows: tuple[int, ...]
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]


_WIDTHS = (64, 256, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536)
"""Widths of products; those of the tables that are between follow within its errors."""
_PRODUCTS = _Grid(
    (
        *(1, 2, 4, 8, 16, 17, 32, 33, 48, 64, 65, 80, 96, 128, 129, 160, 192, 193, 256, 257, 384, 512, 513),
        *(768, 1024, 1025, 1536, 1537, 2048, 2049, 4096, 4097, 8192, 32768),
    ),
    _WIDTHS,
    _WIDTHS,
)
"""Sizes of products; of their rows as many as were measured."""
_OF_EXPERTS = _Grid(
    (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096),
    (16, 64, 256, 512, 1024, 2048, 4096, 16384),
    (1, 4, 16, 64, 256),
)
_GRIDS = {
    "expert_table": _OF_EXPERTS,
    "float8_expert_table": _OF_EXPERTS,
    "mxfp4_expert_table": _OF_EXPERTS,
    "prefill_table": _Grid(
        (64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192),
        (1, 4, 16, 64, 128, 256, 512, 1024, 4096, 16384, 262144),
        (64, 128, 192, 256, 512),
    ),
    "decode_table": _Grid(
        (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192, 131072),
        (1, 4, 16, 64, 128, 256, 512, 1024, 4096, 16384),
        (64, 128, 192, 256, 512),
    ),
}
"""Sizes of the tables of other kernels."""
_WITH = "of sizes with even crc32"
_EXPERT_SIZES, _ATTENTION_SIZES = "(hidden,width,topk,experts,format)", "(heads,shared,width,window,format)"
_CONTENTS = {
    "product_table": f"products in bfloat16 {_WITH}(n,k,format)",
    "float8_product_table": f"products in fp8 {_WITH}(n,k,format)",
    "float4_product_table": f"products in nvfp4 {_WITH}(n,k,format)",
    "expert_table": f"calls of experts in bfloat16 {_WITH}{_EXPERT_SIZES}",
    "float8_expert_table": f"calls of experts in fp8_block {_WITH}{_EXPERT_SIZES}",
    "mxfp4_expert_table": f"calls of experts in w4a16_mxfp4 {_WITH}{_EXPERT_SIZES}",
    "prefill_table": f"calls of attention of prompts in bfloat16 {_WITH}{_ATTENTION_SIZES}",
    "decode_table": f"calls of attention in decode steps in bfloat16 {_WITH}{_ATTENTION_SIZES}",
}
"""What the calls of each key are."""


def kernel_numbers(
    calls: Sequence[KernelCall], base: Accelerator, *, source: str, lent: bool = False
) -> dict[str, Any]:
    """Return the tables of ``compiled`` that calls give, whose ideal times are those of ``base``; of calls
    that another GPU has ``lent`` estimates."""
    found: dict[str, Any] = {}
    for key, contents in _CONTENTS.items():
        chosen = [one for one in calls if one.key == key and is_input(one.sizes)]
        if not chosen or getattr(base.compute, DTYPES.get(key, "bfloat16")) is None:
            continue
        kept = possible(chosen, base)
        table = _table(kept, base, key) if key in _GRIDS else _products(kept, base, key)
        if len(table["shares"]) < 2:
            raise InputError.at("", f"{key}: too few rows were measured for a table", path=source)
        found[key] = {
            "value": 1.0,
            **table,
            "origin": "estimate" if lent else "measured",
            "source": printable(
                f"{source}: {kept[0].device}, {len(kept)} {contents}, each in a short burst; smoothed "
                "between the sizes"
            ),
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        }
    return found


def possible(calls: Sequence[KernelCall], base: Accelerator) -> list[KernelCall]:
    """Return calls without those of experts of models that would read more than memory gives: an expert has
    two matrices only, or fewer are chosen than the table says."""
    most = base.hbm_bandwidth.value
    over = {one.model for one in calls if one.work.traffic > max(_LARGE, one.seconds * most)} - {""}
    return [one for one in calls if one.model not in over]


def _products(calls: Sequence[KernelCall], base: Accelerator, key: str) -> dict[str, Any]:
    """Return the table of products, each number of rows by itself."""
    shares = []
    for rows in _PRODUCTS.rows:
        measured = [one for one in calls if one.work.rows == rows]
        if len(measured) >= _LEAST:
            shares.append([rows, _text(_fit(measured, base, key, _PRODUCTS._replace(rows=(rows,)))[0])])
    return _written(_PRODUCTS, shares)


def _table(calls: Sequence[KernelCall], base: Accelerator, key: str) -> dict[str, Any]:
    """Return the table of other kernels, whose rows are any numbers; none of too few calls."""
    grid = _GRIDS[key]
    found = _fit(calls, base, key, grid) if len(calls) >= _LEAST else ()
    return _written(grid, [[rows, _text(one)] for rows, one in zip(grid.rows, found, strict=False)])


def _written(grid: _Grid, shares: list[list[Any]]) -> dict[str, Any]:
    return {"outputs": list(grid.outputs), "inputs": list(grid.inputs), "shares": shares}


def _text(shares: npt.NDArray[np.float64]) -> str:
    """Return shares of the ideal speed in thousandths."""
    return " ".join(str(min(_SHARE_MOST, max(1, round(float(one) * 1000)))) for one in shares)


def _fit(calls: Sequence[KernelCall], base: Accelerator, key: str, grid: _Grid) -> npt.NDArray[np.float64]:
    """Return the shares of the ideal speed at the points of a grid, a line for each number of rows.

    Their logarithms are linear between the points in the logarithm of each size; least squares with smoothed
    second differences.
    """
    import numpy as np

    dtype, size = DTYPES.get(key, "bfloat16"), len(grid.outputs) * len(grid.inputs)
    logs = np.log([base.ideal_s(one.work, dtype=dtype) / one.seconds for one in calls])
    weights = np.ones((len(calls), 1))
    for name, points in grid._asdict().items():
        each = _weights(points, [getattr(one.work, name) for one in calls])
        weights = (weights[:, :, None] * each[:, None, :]).reshape(len(calls), -1)
    square = weights.T @ weights + 1e-6 * np.eye(weights.shape[1])
    for axis, points in enumerate(grid):
        if len(points) > 2:
            parts = [np.eye(len(one)) for one in grid]
            parts[axis] = _bends(points)
            bends = np.kron(np.kron(parts[0], parts[1]), parts[2])
            square += _SMOOTH * bends.T @ bends
    shares: npt.NDArray[np.float64] = np.exp(np.linalg.solve(square, weights.T @ logs))
    return shares.reshape(-1, size)


def _weights(points: Sequence[int], sizes: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the part that each point has in each of the sizes."""
    import numpy as np

    return np.stack([np.interp(np.log2(sizes), np.log2(points), one) for one in np.eye(len(points))], axis=1)


def _bends(points: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the second differences at the inner points."""
    import numpy as np

    steps = np.diff(np.log2(points))
    found = np.zeros((len(points) - 2, len(points)))
    for index, (before, after) in enumerate(pairwise(steps)):
        found[index, index : index + 3] = (1 / before, -1 / before - 1 / after, 1 / after)
    return found


# -- tables of other GPUs --------------------------------------------------------------------------

_UNCACHED = 1e8
"""Weights of the products by which times of another GPU are scaled: an RTX PRO 6000 caches 128 MB."""
_LEAST_ALIKE = 10
"""Fewest such products of a number of rows (our choice)."""
_PROMPTS = 2048
"""Rows of the products by which attention of prompts is scaled (our choice); decode steps by those of one
row."""


def lent_calls(own: Sequence[KernelCall], other: Sequence[KernelCall]) -> list[KernelCall]:
    """Return the calls of kernels of another GPU that the own one has none of, in the time that they would
    take if they were slower as products with as many rows are."""
    has = {one.key for one in own}
    found = []
    for product, keys in _LENT.items():
        ratios = _ratios(own, other, product)
        for one in other if ratios else ():
            if one.key in keys and one.key not in has:
                rows = {"decode_table": 1.0, "prefill_table": _PROMPTS}.get(one.key, one.work.rows)
                found.append(one._replace(seconds=one.seconds * _at(ratios, rows)))
    return found


_LENT = {
    "product_table": ("expert_table", "mxfp4_expert_table", "prefill_table", "decode_table"),
    "float8_product_table": ("float8_expert_table",),
}
"""Tables by the products whose times scale them."""


def _ratios(own: Sequence[KernelCall], other: Sequence[KernelCall], key: str) -> list[tuple[float, float]]:
    """Return by rows the mean logarithm of the times of the own products over those of the other GPU, of
    products whose weights no cache holds."""
    import numpy as np

    times = {
        (one.work.rows, one.sizes): one.seconds
        for one in other
        if one.key == key and is_input(one.sizes) and one.work.outputs * one.work.inputs > _UNCACHED
    }
    logs: dict[float, list[float]] = {}
    for one in own:
        if one.key == key and (place := (one.work.rows, one.sizes)) in times:
            logs.setdefault(one.work.rows, []).append(float(np.log(one.seconds / times[place])))
    enough = {rows: found for rows, found in sorted(logs.items()) if len(found) >= _LEAST_ALIKE}
    return [(rows, float(np.mean(found))) for rows, found in enough.items()]


def _at(ratios: Sequence[tuple[float, float]], rows: float) -> float:
    import numpy as np

    points, logs = zip(*ratios, strict=True)
    return float(np.exp(np.interp(np.log(rows), np.log(points), logs)))


# -- all-reduces -----------------------------------------------------------------------------------

_REDUCES = "comm/nccl/*/nccl_perf.parquet"
_REDUCE_COLUMNS: Mapping[str, type] = {
    "device": str,
    "op_name": str,
    "nccl_dtype": str,
    "num_gpus": int,
    "message_size": int,
    "latency": float,
}


class Reduce(NamedTuple):
    """A Reduce is the all-reduce of elements of 16 bits between GPUs."""

    device: str
    gpus: int
    elements: int
    seconds: float

    @property
    def sizes(self) -> str:
        """The columns that say whether it makes profiles."""
        return f"{self.gpus},{self.elements},half"

    @property
    def traffic(self) -> float:
        """Bytes that each GPU sends in a ring [B]."""
        return 2 * (self.gpus - 1) / self.gpus * 2 * self.elements


def read_reduces(folder: str | Path) -> tuple[Reduce, ...]:
    """Read the all-reduces of a system's folder; raises what ``read_calls`` raises."""
    return tuple(
        Reduce(device, gpus, elements, milliseconds / 1e3)
        for path in _newest(folder, _REDUCES)
        for device, kind, form, gpus, elements, milliseconds in _rows(path, _REDUCE_COLUMNS)
        if (kind, form) == ("all_reduce", "half")
    )


def reduce_numbers(reduces: Sequence[Reduce], base: Accelerator, *, source: str) -> dict[str, Any]:
    """Return the numbers of ``compiled`` that all-reduces give: latency, time of each step more and share of
    the rate of the links, by least squares of relative errors."""
    import numpy as np

    chosen = [one for one in reduces if is_input(one.sizes)]
    links = base.interconnect
    if len({one.gpus for one in chosen}) < 2 or links is None:
        return {}
    times = np.array([one.seconds for one in chosen])
    terms = np.array([(1.0, 2 * (one.gpus - 2), one.traffic / links.rate) for one in chosen])
    latency, step, slower = np.linalg.lstsq(terms / times[:, None], np.ones(len(chosen)), rcond=None)[0]
    numbers = {
        "all_reduce_latency": f"{latency * 1e6:.3g} us",
        "all_reduce_step": f"{max(0.0, step) * 1e6:.3g} us",
        "all_reduce_share": round(min(1.0, 1 / float(slower)), 3),
    }
    text = f"{source}: {chosen[0].device}, {len(chosen)} all-reduces with even crc32(gpus,elements,half)"
    about = {
        "origin": "measured",
        "source": printable(f"{text}; least squares of relative errors"),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }
    return {key: {"value": value, **about} for key, value in numbers.items()}
