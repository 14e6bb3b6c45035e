"""llama-bench's output in four forms, and the numbers of profiles that it gives.

``data/llama-bench.json`` has tests of one virtual machine with an H100 (docs/measurements/llama-cpp.md, set
"fit"), with the names of llama-bench's fields.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.models import load_model
from simoffload_calibrate.importers.llama_bench import model_of, read_llama_bench
from simoffload_calibrate.importers.measured_profiles import import_profile
from tests.exchange.refusals import refusal_by

DATA = Path(__file__).parent / "data" / "llama-bench.json"
TESTS: list[dict[str, Any]] = json.loads(DATA.read_text())
_COLUMNS = ["model", "size", "params", "backend", "ngl", "n_cpu_moe", "n_ubatch", "test", "t/s"]
_ROWS = (
    "llama 8B Q4_K - Medium|4.58 GiB|8.03 B|CUDA|99|0|512|tg64|270.58 ± 0.31",
    "qwen3moe 30B.A3B Q4_K - Medium|17.28 GiB|30.53 B|CUDA|99|12|2048|pp2048 @ d4096|2928.96 ± 9.20",
)


def _line(cells: list[str]) -> str:
    return "".join(f"| {one:>30} " for one in cells) + "|\n"


TABLE = "ggml_cuda_init: found 1 CUDA devices:\n" + _line(_COLUMNS) + "| ---: " * len(_COLUMNS) + "|\n"
TABLE += "".join(_line(one.split("|")) for one in _ROWS) + "\nbuild: 0c1e5709 (7000)\n"


def _written(path: Path, tests: object) -> Path:
    path.write_text(json.dumps(tests))
    return path


def test_json_and_lines_and_csv_give_the_same_rows(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text("warning: something\n" + "".join(json.dumps(one) + "\n" for one in TESTS))
    table = tmp_path / "a.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, TESTS[0], quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(TESTS)
    expected = [one._replace(place="", setting="") for one in read_llama_bench(DATA)]
    for path in (lines, table):
        found = read_llama_bench(path)
        assert [one._replace(place="", setting="") for one in found] == expected
    assert [one.place for one in found[:2]] == ["a.csv line 2", "a.csv line 3"]
    assert (expected[0].rate, expected[0].gpu_layers, expected[0].threads) == (270.5847, 99, 16)


def test_a_table_has_what_differs_from_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(TABLE)
    first, second = read_llama_bench(tmp_path / "a.md")
    assert (first.prompt, first.generated, first.depth, first.rate) == (0, 64, 0, 270.58)
    assert (second.prompt, second.ubatch, second.depth, second.cpu_moe) == (2048, 2048, 4096, 12)
    assert [model_of(one).name for one in (first, second)] == ["llama-3-8b, q4_k_m", "qwen3-30b-a3b, q4_k_m"]


def _rates(kind: str, base: str, tests: object, tmp_path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    made = import_profile("llama-bench", [_written(tmp_path / "a.json", tests)], identifier="mine", base=base)
    assert made.kind == kind
    import yaml

    data: dict[str, Any] = yaml.safe_load(made.text)
    return data, made.warnings


def _bench(model: str, shape: str | Mapping[str, Any], seconds: float, **fields: Any) -> dict[str, Any]:
    """A test of one generated token, or of a prompt, that took so long."""
    found = load_model(shape)
    usual = {"n_prompt": 0, "n_gen": 1, "n_gpu_layers": 99, "n_threads": 8, "n_ubatch": 512, "n_cpu_moe": 0}
    usual |= fields
    tokens = usual["n_prompt"] + usual["n_gen"]
    sizes = {"model_size": found.weight_bytes, "model_n_params": found.num_parameters}
    return {"model_type": model, **sizes, **usual, "avg_ts": tokens / seconds, "avg_ns": seconds * 1e9}


_LLAMA = {"name": "llama-3.1-8b", "quantization": "none"}
_QWEN = {"name": "qwen3-30b-a3b", "quantization": "q8_0"}
_LLAMA_READS = 2 * (8_030_261_248 - 128_256 * 4096)
"""All weights in 16 bits but the embedding."""
_EXPERT = 3 * 768 * 2048 * 34 // 32
_QWEN_EXPERTS = 8 * _EXPERT


def test_two_resident_models_give_the_rate_of_gpu_memory(tmp_path: Path) -> None:
    small = {"name": "qwen3-0.6b", "quantization": "none"}
    # kernels of a layer: 2 norms of 2, 6 products of 2 (up is in gate's), 5; in Qwen3 2 norms of 1
    reads = 2 * load_model(small).num_parameters  # the embedding serves as the head
    tests = [
        _bench("llama 8B F16", _LLAMA, _LLAMA_READS / 2500e9 + (32 * 21 + 4) * 2.5e-6),
        _bench("qwen3 0.6B F16", small, reads / 2500e9 + (28 * 23 + 4) * 2.5e-6),
    ]
    data, warnings = _rates("accelerator", "h100-sxm", tests, tmp_path)
    found = data["hbm_efficiency"]
    assert found["value"] == pytest.approx(2500 / 3350, abs=1e-4)
    assert found["origin"] == "measured"
    assert "a.json [0] (llama-3-8b), a.json [1] (qwen3-0.6b)" in found["source"]
    assert "2500 GB/s, 2.50 us a kernel" in found["source"]
    assert warnings[0].startswith("ggml.kernel_latency is kept: they give 2.50 us")
    assert warnings[1].startswith(
        "compiled.read_efficiency of h100-sxm goes before hbm_efficiency; set it to 0.746"
    )


def test_recorded_runs_give_plausible_numbers(tmp_path: Path) -> None:
    gpu, _ = _rates("accelerator", "h100-sxm", TESTS, tmp_path)
    assert gpu["hbm_efficiency"]["value"] == pytest.approx(0.751, abs=0.002)
    host, warnings = _rates("host", "h100-1gpu-vm-host", TESTS, tmp_path)
    products = host["cpu_products"]
    assert {key for key, one in products.items() if one["origin"] == "measured"} == {
        *("weights", "thread", "experts", "tiled")
    }
    # 4.617 GB in 72.04 and 203.24 ms, less 838 meetings of 1.9 us: 65.54 and 22.90 GB/s on 16 and 4 threads;
    # 1 / rate^2 = 1 / (T thread)^2 + 1 / limit^2 of both
    assert products["thread"]["value"] == "5.9155 GB/s"
    assert products["weights"]["value"] * 614.4 == pytest.approx(90.9, abs=0.1)
    assert products["experts"]["value"] * 614.4 == pytest.approx(51.6, abs=0.1)
    # 2 * 6.98 billion * 512 FLOP in 3.9912 s; a part of 0.12 s reads; (1 + 24 / 512) times that of 16 threads
    assert products["tiled"]["value"] == "0.11719 TFLOPS"
    assert any("dot, blocked: not identified" in one for one in warnings)
    assert any(
        "switch is not identified: two mixtures of experts give it a negative" in one for one in warnings
    )
    assert host["pageable"]["points"] == [["226492416 B", "8588.13 MB/s"]]


def _with_experts(name: str, model: Mapping[str, Any], read: int, layers: int) -> list[dict[str, Any]]:
    """Tests with no experts on the CPU, and with those of all layers, which take 60 GB/s on 8 threads, 40 us
    for each of three tensors and 1.9 us for each of six meetings."""
    resident = 0.004
    on_gpu = resident * read * layers / load_model(model).least_read_bytes
    more = layers * (read / 60e9 + 3 * 40e-6 + 6 * 1.9e-6) - on_gpu
    return [
        _bench(name, model, resident),
        _bench(name, model, resident + more, n_cpu_moe=layers),
    ]


def test_one_mixture_gives_the_rate_of_experts_and_two_give_the_change_of_device(tmp_path: Path) -> None:
    one = _with_experts("qwen3moe 30B.A3B Q8_0", _QWEN, _QWEN_EXPERTS, 48)
    other = {"name": "qwen3-30b-a3b", "quantization": "q4_0"}
    expert = 3 * 768 * 2048 * 18 // 32
    two = [*one, *_with_experts("qwen3moe 30B.A3B Q4_0", other, 8 * expert, 48)]
    data, _ = _rates("host", "dgx-h100-2tb", two, tmp_path)
    peak = 1 / float(str(data["memory_bandwidth"]["value"]).split()[0])
    limit = (60**-2 - (8 * 14) ** -2) ** -0.5  # beneath which 8 threads of 14 GB/s have 60
    assert data["cpu_products"]["experts"]["value"] == pytest.approx(limit * peak, abs=2e-4)
    assert float(data["cpu_products"]["switch"]["value"].split()[0]) == pytest.approx(40, rel=0.01)
    alone, warnings = _rates("host", "dgx-h100-2tb", one, tmp_path)
    assert alone["cpu_products"]["switch"]["origin"] == "estimate"
    assert any(text.startswith("switch is not identified") for text in warnings)


def test_two_micro_batches_give_the_rate_of_copies(tmp_path: Path) -> None:
    layer = 128 * _EXPERT
    shape = load_model(_QWEN)
    tests = []
    for ubatch in (512, 2048):
        experts = next(one for one in shape.layers[0] if one.name == "mlp.experts")
        copied = 2048 // ubatch * 24 * layer * shape.touched_share(experts, ubatch)
        fields = {"n_prompt": 2048, "n_gen": 0, "n_cpu_moe": 24, "n_ubatch": ubatch, "load_mode": "none"}
        tests.append(_bench("qwen3moe 30B.A3B Q8_0", _QWEN, 0.5 + copied / 40e9, **fields))
    data, warnings = _rates("pcie", "gen5", tests, tmp_path)
    ((_, rate),) = data["host_to_device"]["points"]
    assert float(rate.split()[0]) == pytest.approx(40_000, rel=1e-4)
    assert not any("not identified" in one for one in warnings)
    alone = [_bench("llama 8B F16", _LLAMA, 0.2, n_gpu_layers=0)]
    _, warnings = _rates("host", "dgx-h100-2tb", alone, tmp_path)
    assert any(one.startswith("pageable is not identified") for one in warnings)


# -- bad input ---------------------------------------------------------------------------------------


def _changed(**fields: Any) -> list[dict[str, Any]]:
    return [{key: one for key, one in {**TESTS[0], **fields}.items() if one is not ...}, *TESTS[1:]]


_WRONG: dict[str, tuple[Any, str]] = {
    "empty": ([], "has no tests"),
    "numbers": ([1, 2], "must be a list of objects"),
    "no size": (_changed(model_size=...), "[0].model_size: missing; is this the output of llama-bench"),
    "no layers": (_changed(n_gpu_layers=...), "[0].n_gpu_layers: missing"),
    "no rate": (_changed(avg_ts=...), "[0].avg_ts: must be a rate above 0, not 'missing'"),
    "zero": (_changed(avg_ts=0), "[0].avg_ts: must be a rate above 0, not '0'"),
    "text": (_changed(n_ubatch="many"), "[0].n_ubatch: must be a number of at least 0, not 'many'"),
    "huge": (_changed(n_prompt=10**18), "[0].n_prompt: must be a number"),
    "negative": (_changed(n_cpu_moe=-1), "[0].n_cpu_moe: must be a number"),
    "nothing": (_changed(n_gen=0), "[0].n_prompt: the test has neither a prompt nor generated tokens"),
    "time": (_changed(avg_ns=10**6), "[0].avg_ns: 64 tokens in 1e+06 ns are not 270.6 tokens/s"),
    "twice": (
        [*TESTS, TESTS[0] | {"avg_ts": 90.0, "avg_ns": 0}],
        "is the same test as a.json [0] with 270.6",
    ),
}


@pytest.mark.parametrize(("tests", "message"), _WRONG.values(), ids=_WRONG)
def test_wrong_fields_are_named(tests: Any, message: str, tmp_path: Path) -> None:
    assert message in refusal_by(read_llama_bench, _written(tmp_path / "a.json", tests))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{", "not valid JSON"),
        ('[{"avg_ts": NaN}]', "NaN is not a finite number"),
        ("[" * 100_000, "not valid JSON"),
        ("build_commit,n_gen\n1,2,3\n", ":2: has 3 values in 2 columns"),
        (TABLE.replace("tg64", "bench"), ":4: the test 'bench' is neither pp512, tg128 nor pp512+tg128"),
        (TABLE.replace("params", "number"), ":2: the table has no column params"),
        (TABLE.replace("4.58 GiB", "big"), "model_size: must be a number of at least 0, not 'big'"),
        ("CREATE TABLE IF NOT EXISTS llama_bench", "has no tests"),
    ],
)
def test_wrong_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(text)
    assert message in refusal_by(read_llama_bench, tmp_path / "a")


def _refused(base: str, tests: object, tmp_path: Path) -> str:
    with pytest.raises(InputError) as caught:
        import_profile("llama-bench", [_written(tmp_path / "a.json", tests)], identifier="mine", base=base)
    return str(caught.value)


def test_what_gives_no_number_and_what_cannot_be_is_refused(tmp_path: Path) -> None:
    alone = _refused("h100-sxm", TESTS[:1], tmp_path)
    assert "no number can be derived: hbm_efficiency is not identified: it needs" in alone
    unknown = _refused(
        "h100-sxm", _changed(model_type="rwkv 7B Q8_0", model_n_params=7_000_000_001), tmp_path
    )
    assert "the model 'rwkv 7B Q8_0' is not known: no listed model has its size; put its GGUF file" in unknown
    assert "its format is not known" in _refused("gen5", _changed(model_type="llama 8B"), tmp_path)
    slow = _refused("h100-1gpu-vm-host", [one | {"n_gpu_layers": 0} for one in TESTS[:1]], tmp_path)
    assert "cpu_products.weights: would be" in slow
    assert "is it the profile of the machine that was measured?" in slow


def test_hundreds_of_damaged_files_give_one_message_each(tmp_path: Path) -> None:
    chance, text, refused = random.Random(38), DATA.read_text(), 0
    path = tmp_path / "a.json"
    for _ in range(200):
        damaged = list(text)
        for _ in range(chance.choice((1, 2, 10))):
            damaged[chance.randrange(len(damaged))] = chance.choice('0123456789-.eE"{}[],:naTf \n')
        path.write_text("".join(damaged)[: chance.choice((None, chance.randrange(len(text))))])
        messages = _messages(path)
        refused += bool(messages)
        assert len(messages) <= 1
    assert refused > 60


def _messages(path: Path) -> list[str]:
    try:
        import_profile("llama-bench", [path], identifier="mine", base="h100-1gpu-vm-host")
    except InputError as error:
        return [one.message for one in error.problems]
    return []
