"""Tables of kernels of aiconfigurator, and the calls that judge those which profiles ship."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from simoffload.documents import parse_yaml
from simoffload.errors import InputError
from simoffload.hardware import (
    Accelerator,
    Attended,
    AttentionSizes,
    KernelWork,
    Library,
    decode_work,
    prefill_work,
)
from simoffload_calibrate.importers.aiconfigurator import is_input, read_calls
from simoffload_calibrate.importers.measured_profiles import import_profile
from validation.kernels import call_classes, judging_calls, product_classes

WIDTHS = (64, 512, 1024, 2048, 4096, 8192, 12288, 16384, 65536)
LATENCY, BANDWIDTH, PEAK = 3e-6, 2039e9, 312e12
"""Of a100-80g-sxm."""


def burst_s(rows: int, outputs: int, inputs: int) -> float:
    """The time at half of the ideal speed."""
    read = 2 * (inputs * outputs + rows * inputs + rows * outputs) / BANDWIDTH
    work = 2 * rows * outputs * inputs / PEAK
    return float(2 * ((read**3 + work**3) ** (1 / 3) + LATENCY))


def folder(path: Path, *, slower: float = 1.0, **columns: Any) -> Path:
    """Write a system's table of products at half of the ideal speed, or ``slower``; products that judge are
    ten times as slow."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    sizes = [(m, n, k) for m in (1, 16, 4096) for n in WIDTHS for k in WIDTHS]
    times = [
        slower * burst_s(*one) * (1e3 if is_input(f"{one[1]},{one[2]},bfloat16") else 1e4) for one in sizes
    ]
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


def a100() -> Accelerator:
    found = Library().find("a100-80g-sxm", ("accelerator",)).profile
    assert isinstance(found, Accelerator)
    return found


def written(path: Path, place: str, rows: list[dict[str, Any]]) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (path / place).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), path / place)


def experts(path: Path, **changed: Any) -> Path:
    """Write a table of experts at half of the ideal speed beside the kernels around them; calls that judge
    are ten times as slow."""
    gpu, rows = a100(), []
    for hidden in (2048, 4096):
        for width in (256, 512, 768, 1024, 1536, 2048, 4096):
            for each, number in ((2, 8), (4, 32), (8, 128)):
                for tokens in (1, 16, 256, 4096):
                    pairs = tokens * each
                    chosen = min(number, pairs)
                    traffic = 6 * chosen * hidden * width + 2 * pairs * (2 * hidden + 3 * width)
                    flops = 6 * pairs * hidden * width
                    work = KernelWork(pairs / chosen, width, chosen, traffic, flops, kernels=4)
                    around = (2 * hidden * (pairs + tokens) + 6 * pairs * width) / gpu.hbm_rate + 2 * LATENCY
                    sizes = f"{hidden},{width},{each},{number},bfloat16"
                    slow = 1.0 if is_input(sizes) else 10.0
                    row = {
                        "device": "a card",
                        "kernel_source": "triton",
                        "moe_dtype": "bfloat16",
                        "num_tokens": tokens,
                        "hidden_size": hidden,
                        "inter_size": width,
                        "topk": each,
                        "num_experts": number,
                        "moe_tp_size": 1,
                        "moe_ep_size": 1,
                        "distribution": "balanced",
                        "latency": slow * (2 * gpu.ideal_s(work, dtype="bfloat16") + around) * 1e3,
                    }
                    rows.append(row | changed)
    written(path, "moe/vllm/1.0/moe_perf.parquet", rows)
    return path


def attention(path: Path) -> Path:
    """Write tables of attention at half of the ideal speed; calls that judge are ten times as slow."""
    gpu = a100()
    found: dict[str, list[dict[str, Any]]] = {"context_attention": [], "generation_attention": []}
    for heads, shared in ((8, 8), (16, 4), (32, 8), (40, 8), (64, 8), (12, 2)):
        for width in (64, 128, 256):
            for window in (0, 128):
                sizes = AttentionSizes(heads, shared, width, window or None, 2)
                text = f"{heads},{shared},{width},{window},bfloat16"
                for batch in (1, 16):
                    for keys in (64, 1024, 4096):
                        for kind, rows in found.items():
                            prompt = kind == "context_attention"
                            one = Attended(batch, keys if prompt else 1, keys)
                            work = (
                                prefill_work([one], sizes)
                                if prompt
                                else decode_work([one], sizes, least_rows=16)
                            )
                            slow = 1.0 if is_input(text) else 10.0
                            rows.append(
                                {
                                    "device": "a card",
                                    "op_name": kind,
                                    "kv_cache_dtype": "bfloat16",
                                    "batch_size": batch,
                                    "isl": keys if prompt else 1,
                                    "step": 0 if prompt else keys - 1,
                                    "num_heads": heads,
                                    "num_key_value_heads": shared,
                                    "head_dim": width,
                                    "window_size": window,
                                    "latency": slow * 2e3 * gpu.ideal_s(work, dtype="bfloat16"),
                                }
                            )
    for kind, rows in found.items():
        written(path, f"attention/vllm/1.0/{kind}_perf.parquet", rows)
    return path


def made(*paths: Path) -> Any:
    return import_profile("aiconfigurator", paths, identifier="card", base="a100-80g-sxm")


def tables(*paths: Path) -> Any:
    return parse_yaml(made(*paths).text, name="card").data["compiled"]


def shares(table: Any) -> list[int]:
    return [int(one) for _, text in table["shares"] for one in text.split()]


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
    assert "row 1, latency" in refused(folder(tmp_path / "slow", latency=1e6))
    assert "row 1, m: -1 is not a whole number above 0" in refused(folder(tmp_path / "few", m=-1))
    assert "products in bfloat16, fp8 and nvfp4" in refused(folder(tmp_path / "other", gemm_dtype="nvfp4"))
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
    assert len(classes) == 3 * 8
    assert {(one.gpu, one.form, one.size): one.mean for one in classes if one.mean > 0.08} == {}
    assert max(abs(one.bias) for one in classes) < 0.03


def test_the_sample_has_no_product_that_made_a_profile() -> None:
    data = Path(__file__).parents[2] / "validation" / "kernels" / "products.csv"
    rows = [line.split(",") for line in data.read_text(encoding="utf-8").splitlines()[1:]]
    assert not any(is_input(f"{one[3]},{one[4]},{one[1]}") for one in rows)


@pytest.mark.parametrize("missing", ["m", "latency"])
def test_a_table_without_a_column_is_refused(missing: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = folder(tmp_path) / "gemm" / "vllm" / "1.0" / "gemm_perf.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns([missing]), path)
    with pytest.raises(InputError, match=f"no column {missing}"):
        read_calls(tmp_path, a100())


def test_experts_and_attention_have_tables_of_input_rows_alone(tmp_path: Path) -> None:
    found = tables(attention(experts(tmp_path)))
    for key in ("expert_table", "prefill_table", "decode_table"):
        assert found[key]["origin"] == "measured"
        assert all(abs(one - 500) <= 3 for one in shares(found[key])), key
    # what the folder has no table of is that of the base
    assert "not measured here" in found["product_table"]["source"]


def test_tables_of_another_gpu_are_scaled_by_products_and_estimates(tmp_path: Path) -> None:
    own = folder(tmp_path / "own", slower=1.5)
    other = experts(folder(tmp_path / "other"))
    found = tables(own, other)
    assert found["expert_table"]["origin"] == "estimate"
    assert "in the times of products of own" in found["expert_table"]["source"]
    assert all(abs(one - 333) <= 3 for one in shares(found["expert_table"]))
    assert found["product_table"]["origin"] == "measured"
    assert all(abs(one - 333) <= 3 for one in shares(found["product_table"]))


def test_experts_that_memory_could_not_give_make_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too few rows"):
        made(experts(tmp_path, latency=0.02))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"inter_size": 0}, "inter_size: 0 is not a whole number above 0"),
        ({"distribution": 7}, "distribution: 7 is not a text"),
        ({"latency": -1.0}, "latency: -1.0 is not a time above 0"),
    ],
)
def test_rows_of_experts_that_cannot_be_are_refused(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert message in refused(experts(tmp_path, **changed))


@pytest.mark.parametrize("changed", [{"moe_ep_size": 2}, {"distribution": "power_law_1.2"}])
def test_experts_without_a_table_say_so(changed: dict[str, Any], tmp_path: Path) -> None:
    assert "has no kernels for a100-80g-sxm; read are products" in refused(experts(tmp_path, **changed))


def test_all_reduces_give_latency_step_and_share(tmp_path: Path) -> None:
    rate = 300e9 * 0.92
    rows = [
        {
            "device": "a card",
            "op_name": "all_reduce",
            "nccl_dtype": "half",
            "num_gpus": gpus,
            "message_size": 1 << size,
            "latency": 1e3
            * (8e-6 + 2 * (gpus - 2) * 1e-6 + 4 * (gpus - 1) / gpus * (1 << size) / (0.8 * rate)),
        }
        for gpus in (2, 4, 8)
        for size in range(8, 29)
    ]
    written(tmp_path, "comm/nccl/2.0/nccl_perf.parquet", rows)
    found = tables(tmp_path)
    assert found["all_reduce_latency"]["value"] == "8 us"
    assert found["all_reduce_step"]["value"] == "1 us"
    assert found["all_reduce_share"]["value"] == pytest.approx(0.8)


ABOVE = {
    ("h100-sxm", "expert_table", "more than 512 tokens"),
    ("h100-sxm", "float8_expert_table", "more than 512 tokens"),
    ("h200-sxm", "expert_table", "more than 512 tokens"),
    ("h200-sxm", "float8_expert_table", "more than 512 tokens"),
    ("h200-sxm", "float8_expert_table", "up to 64 tokens"),
    ("h200-sxm", "decode_table", "more than 64 sequences"),
    ("h200-sxm", "prefill_table", "up to 256 keys of a token"),
    ("h200-sxm", "prefill_table", "257 to 1,024 keys of a token"),
}
"""Classes whose errors are more than 8 % (docs/measurements/other-gpus.md)."""


def test_calls_that_made_no_profile_are_within_their_bars() -> None:
    classes = {(one.gpu, one.form, one.size): one for one in call_classes()}
    assert len(classes) == 3 * 6
    assert {key for key, one in classes.items() if one.mean > 0.08} == ABOVE
    assert max(one.mean for one in classes.values()) < 0.135


def test_the_sample_has_no_call_that_made_a_profile() -> None:
    calls = [one for _, one, _ in judging_calls()]
    assert len(calls) > 2000
    assert not any(is_input(one.sizes) for one in calls)
