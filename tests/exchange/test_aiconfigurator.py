"""Tables of products of aiconfigurator, and the products that judge those which profiles ship."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from simoffload.documents import parse_yaml
from simoffload.errors import InputError
from simoffload.exchange.aiconfigurator import is_input, read_products
from simoffload.exchange.measured_profiles import import_profile
from simoffload.hardware import Library
from validation.kernels import product_classes

WIDTHS = (64, 512, 1024, 2048, 4096, 8192, 12288, 16384, 65536)
LATENCY, BANDWIDTH, PEAK = 3e-6, 2039e9, 312e12
"""Of a100-80g-sxm."""


def burst_s(rows: int, outputs: int, inputs: int) -> float:
    """The time at half of the ideal speed."""
    read = 2 * (inputs * outputs + rows * inputs + rows * outputs) / BANDWIDTH
    work = 2 * rows * outputs * inputs / PEAK
    return float(2 * ((read**3 + work**3) ** (1 / 3) + LATENCY))


def folder(path: Path, **columns: Any) -> Path:
    """Write a system's table of products at half of the ideal speed; products that judge are ten times as
    slow."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    sizes = [(m, n, k) for m in (1, 16, 4096) for n in WIDTHS for k in WIDTHS]
    times = [burst_s(*one) * (1e3 if is_input(*one[1:], "bfloat16") else 1e4) for one in sizes]
    table = {
        "device": ["a card"] * len(sizes),
        "gemm_dtype": ["bfloat16"] * len(sizes),
        **{key: [one[index] for one in sizes] for index, key in enumerate("mnk")},
        "latency": times,
        **{key: [value] * len(sizes) for key, value in columns.items()},
    }
    place = path / "gemm" / "vllm" / "1.0"
    place.mkdir(parents=True)
    parquet.write_table(pa.table(table), place / "gemm_perf.parquet")
    return path


def made(path: Path) -> Any:
    return import_profile("aiconfigurator", [path], identifier="card", base="a100-80g-sxm")


def refused(*paths: Path) -> str:
    with pytest.raises(InputError) as caught:
        import_profile("aiconfigurator", paths, identifier="card", base="a100-80g-sxm")
    return caught.value.problems[0].message


def test_input_rows_alone_make_the_table(tmp_path: Path) -> None:
    table = parse_yaml(made(folder(tmp_path)).text, name="card").data["compiled"]["product_table"]
    shares = {rows: [int(one) for one in text.split()] for rows, text in table["shares"]}
    assert list(shares) == [1, 16, 4096]
    assert all(abs(one - 500) <= 1 for row in shares.values() for one in row)
    assert (table["value"], table["origin"]) == (1.0, "measured")


def test_a_table_gives_the_time_of_a_product(tmp_path: Path) -> None:
    (tmp_path / "card.yaml").write_text(made(folder(tmp_path / "card")).text, encoding="utf-8")
    gpu: Any = Library().read(tmp_path / "card.yaml", ("accelerator",)).profile
    for rows, outputs, inputs in ((1, 5000, 3000), (7, 64, 64), (100, 4096, 4096), (4000, 14336, 4096)):
        found = gpu.product_s(rows=rows, outputs=outputs, inputs=inputs, dtype="bfloat16", size=2)
        assert found == pytest.approx(burst_s(rows, outputs, inputs), rel=0.003)
    assert gpu.product_s(rows=1, outputs=64, inputs=64, dtype="float8", size=2) is None


def test_what_is_no_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = folder(tmp_path / "a100_sxm")
    assert "name one of a100_sxm in it" in refused(tmp_path)
    assert "is no folder" in refused(tmp_path / "nothing")
    assert "one folder" in refused(good, good)
    assert "row 1, latency" in refused(folder(tmp_path / "slow", latency=1e6))
    assert "row 1, m: -1 is not a whole number above 0" in refused(folder(tmp_path / "few", m=-1))
    assert "bfloat16, fp8" in refused(folder(tmp_path / "other", gemm_dtype="nvfp4"))
    (good / "gemm" / "vllm" / "1.0" / "gemm_perf.parquet").write_text("version https://git-lfs")
    assert "not a parquet file" in refused(good)

    def without(name: str, *given: Any, **named: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return original(name, *given, **named)

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install 'simoffload[parquet]'" in refused(good)


def test_products_that_made_no_profile_are_within_eight_percent() -> None:
    classes = product_classes()
    assert len(classes) == 3 * 7
    assert {(one.gpu, one.form, one.rows): one.mean for one in classes if one.mean > 0.08} == {}
    assert max(abs(one.bias) for one in classes) < 0.03


def test_the_sample_has_no_product_that_made_a_profile() -> None:
    data = Path(__file__).parents[2] / "validation" / "kernels" / "products.csv"
    rows = [line.split(",") for line in data.read_text(encoding="utf-8").splitlines()[1:]]
    assert not any(is_input(int(one[3]), int(one[4]), one[1]) for one in rows)


@pytest.mark.parametrize("missing", ["m", "latency"])
def test_a_table_without_a_column_is_refused(missing: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = folder(tmp_path) / "gemm" / "vllm" / "1.0" / "gemm_perf.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns([missing]), path)
    with pytest.raises(InputError, match=f"no column {missing}"):
        read_products(tmp_path)
