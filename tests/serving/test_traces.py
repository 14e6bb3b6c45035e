"""Traces of requests: each format, the shipped slices, and broken files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simoffload.errors import InputError
from simoffload.extensions.serving.prefixes import RadixCache
from simoffload.extensions.serving.requests import Requests
from simoffload.extensions.serving.scheduler import AFTER_ANY
from simoffload.extensions.serving.traces import RecordedTrace, read_trace, shipped_traces
from simoffload.scenario.streams import StreamOptions
from simoffload.shipped import shipped_folder
from validation.block_pool import BlockPool
from validation.prefix_hits import hit_rate

MOONCAKE, AZURE = "mooncake-conversation-1000.jsonl", "azure-2023-conversation-2000.csv"


def read(file: Path | str, *, number: int | None = None, draw: Any = None, **options: Any) -> RecordedTrace:
    arrivals = options.pop("arrivals", None)
    trace = {"file": str(file), **options}
    stream = StreamOptions.model_validate({"num_prompts": number, "trace": trace, "arrivals": arrivals})
    return read_trace(stream, draw=draw)


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


def rows(requests: Requests) -> list[tuple[float, int, int]]:
    columns = (requests.arrival.round(6), requests.prompt, requests.output)
    return list(zip(*(one.tolist() for one in columns), strict=True))


def test_the_shipped_traces_are_read() -> None:
    assert shipped_traces() == (AZURE, MOONCAKE)
    found = read(MOONCAKE)
    requests = found.requests
    assert (found.format, found.failed, len(requests.prompt)) == ("Mooncake", 0, 1000)
    assert rows(requests)[0] == (0.0, 6758, 500)
    assert requests.runs[1] == ((0, 512), (14, 7322 - 512))
    assert set(np.diff(requests.arrival).round(2).tolist()) <= {0.0, 3.0, 6.0}
    assert all(
        sum(t for _, t in run or ()) == n for run, n in zip(requests.runs, requests.prompt, strict=True)
    )
    azure = read(AZURE)
    assert azure.format == "Azure"
    assert rows(azure.requests)[:2] == [(0.0, 374, 44), (4.314579, 396, 109)]
    assert len(azure.requests.prompt) == 2000
    assert azure.requests.runs[0] is None


FORMATS = {
    "Azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:59.500000+00:00,10,2\n2024-05-10 00:01:01.000000+00:00,30,4\n",
    "BurstGPT": "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
    "Log Type\n"
    "5,,1,ChatGPT,10,2,12,Conversation log\n5.5,,1,GPT-4,99,0,99,API log\n6.5,,1,GPT-4,30,4,34,API log\n",
    "CSV with arrival, prompt and output": "output,arrival,prompt\n2,100,10\n\n4,101.5,30\n",
    "Mooncake": '{"timestamp": 500, "input_length": 10, "output_length": 2}\n'
    '{"timestamp": 2000, "input_length": 30, "output_length": 4}\n',
    "Qwen-Bailian": '{"chat_id": 1, "timestamp": 61.1, "input_length": 10, "output_length": 2}\n'
    '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 62.6, "input_length": 30, "output_length": 4}\n',
    "vllm bench": json.dumps(
        {
            "input_lens": [30, 9, 10],
            "output_lens": [4, 0, 2],
            "start_times": [9.5, 8.5, 8],
            "errors": ["", "timeout", ""],
        },
        indent=1,
    ),
    "AIPerf": "\n".join(
        json.dumps(
            {
                "metadata": {"request_start_ns": start, "benchmark_phase": phase},
                "metrics": {
                    "input_sequence_length": {"value": prompt, "unit": "tokens"},
                    "output_sequence_length": {"value": output, "unit": "tokens"},
                },
                "error": None,
            }
        )
        for start, prompt, output, phase in (
            (0, 7, 7, "warmup"),
            (3_000_000_000, 30, 4, "profiling"),
            (1_500_000_000, 10, 2, "profiling"),
        )
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_known_by_its_content(tmp_path: Path, name: str) -> None:
    found = read(written(tmp_path, FORMATS[name]))
    assert found.format == name
    assert rows(found.requests) == [(0.0, 10, 2), (1.5, 30, 4)]
    assert found.failed == (name in ("BurstGPT", "vllm bench", "AIPerf"))


def test_a_result_of_vllm_in_one_line(tmp_path: Path) -> None:
    text = json.dumps(json.loads(FORMATS["vllm bench"]))
    assert rows(read(written(tmp_path, text)).requests) == [(0.0, 10, 2), (1.5, 30, 4)]


def test_slices_rates_and_repetitions() -> None:
    part = read(AZURE, number=100, skip=10).requests
    whole = read(AZURE).requests
    np.testing.assert_allclose(part.arrival, whole.arrival[10:110] - whole.arrival[10])
    np.testing.assert_array_equal(part.prompt, whole.prompt[10:110])
    double = read(AZURE, number=100, skip=10, rate_factor=2, repeat=3).requests
    np.testing.assert_allclose(double.arrival[:100], part.arrival / 2)
    assert len(double.arrival) == 300
    assert (np.diff(double.arrival) >= 0).all()
    np.testing.assert_array_equal(double.output, np.tile(part.output, 3))
    spread = read(MOONCAKE, spread=True).requests.arrival
    stamps = read(MOONCAKE).requests.arrival
    assert (np.diff(spread) > 0).all()
    assert ((spread - stamps >= 0) & (spread - stamps < 6)).all()
    arrivals = {"kind": "constant", "request_rate": 2}
    own = read(AZURE, number=10, arrivals=arrivals, draw=np.random.default_rng(0)).requests
    np.testing.assert_allclose(own.arrival, np.arange(1, 11) / 2)


def test_no_more_of_a_file_is_read_than_needed(tmp_path: Path) -> None:
    path = written(tmp_path, FORMATS["Mooncake"] + "broken")
    assert len(read(path, number=2).requests.prompt) == 2
    with pytest.raises(InputError, match=r"trace:3: a broken row"):
        read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (
            "a,b\n1,2\n",
            r'trace:1: its format is not known by its first line, "a,b"; it can be Azure, BurstGPT',
        ),
        ('{"a": 1}\n', "its format is not known"),
        ('[{"conversations": []}]', "such as ShareGPT, write a CSV with the tokens of your tokenizer"),
        ("arrival,prompt,output\n", "has no requests; name a file with recorded requests"),
        ("arrival,prompt,output\n1,2,3\n1,2\n", "trace:3: a broken row: too few columns"),
        ("arrival,prompt,output\n1,x,3\n", 'trace:2: a broken row: "x" is no finite number'),
        ("arrival,prompt,output\n1,4.5,3\n", 'trace:2: a broken row: "4.5" is no whole number of tokens'),
        ("arrival,prompt,output\nnan,1,3\n", 'trace:2: a broken row: "nan" is no finite number'),
        ("arrival,prompt,output\n1,0,3\n", "trace:2: a broken row: its prompt has 0 tokens"),
        ("arrival,prompt,output\n1,1,-3\n", "trace:2: a broken row: its output has -3 tokens"),
        (FORMATS["BurstGPT"].splitlines()[0] + "\n5,,1,GPT,1,0,1,x\n", "has no requests but 1 that failed"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", '"yesterday" is no date and time'),
        ('{"timestamp": 1, "input_length": 6, "output_length": 2}\n{oops', "trace:2: .* no object of JSON"),
        ('{"timestamp": 1, "input_length": 6, "output_length": 1%s}' % ("0" * 400), "is no finite number"),
        (
            '{"timestamp": 1, "input_length": 1600, "output_length": 2, "hash_ids": [1]}',
            "1 hash_ids for 1600",
        ),
        ('{"timestamp": 1, "input_length": 6, "output_length": 2, "hash_ids": ["a"]}', "no whole numbers"),
        ('{"timestamp": 1, "hash_ids": [1]}', "trace:1: a broken row: no input_length"),
        ('{"input_lens": [1], "output_lens": [1]}', "lacks start_times"),
        ('{\n"input_lens": [1,\n', "no object of JSON"),
        ('{"metadata": {}}', "trace:1: a broken row: no timestamp_ns"),
    ],
)
def test_broken_files_are_refused_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read(written(tmp_path, text))
    assert len(error.value.problems) == 1


def test_whole_numbers_may_have_a_point(tmp_path: Path) -> None:
    assert rows(read(written(tmp_path, "arrival,prompt,output\n0,10.0,1e2\n")).requests) == [(0.0, 10, 100)]


@pytest.mark.parametrize("hashes", [[7, 8, 4], [7, 8, 4, 5]])
def test_blocks_of_qwen_bailian_have_16_tokens(tmp_path: Path, hashes: list[int]) -> None:
    row = {"chat_id": 1, "timestamp": 3, "input_length": 50, "output_length": 2, "hash_ids": hashes}
    found = read(written(tmp_path, json.dumps(row))).requests
    assert found.runs == [((7, 32), (4, 18))]
    with pytest.raises(InputError, match="2 hash_ids for 50 tokens, of which each has 16"):
        read(written(tmp_path, json.dumps({**row, "hash_ids": [7, 8]})))


def test_equal_conversations_of_aiperf_begin_with_the_same_prompt(tmp_path: Path) -> None:
    record = json.loads(FORMATS["AIPerf"].splitlines()[1])
    texts = []
    for name, turn in (("a", 0), ("b", 0), ("a", 0), ("a", 1)):
        record["metadata"] |= {"conversation_id": name, "turn_index": turn}
        texts.append(json.dumps(record))
    first, other, again, later = read(written(tmp_path, "\n".join(texts))).requests.runs
    assert first == again != other
    assert [tokens for _, tokens in first or ()] == [30]
    assert later is None


def test_users_send_the_recorded_requests() -> None:
    draw = np.random.default_rng(0)
    requests = read(AZURE, number=5, draw=draw, arrivals={"kind": "closed", "users": 2}).requests
    assert requests.prompt.tolist() == read(AZURE, number=5).requests.prompt.tolist()
    assert requests.after.tolist() == [-1, -1, *[AFTER_ANY] * 3]
    assert not requests.arrival.any()


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'no file .*did you mean "mooncake-conversation-1000.jsonl"'):
        read("mooncake-conversation.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not text in UTF-8"):
        read(tmp_path / "binary")
    with pytest.raises(InputError, match="no requests after the first 1000"):
        read(MOONCAKE, skip=1000)


def test_hits_of_the_shipped_slice_are_exact() -> None:
    requests = read(MOONCAKE).requests
    lines = (shipped_folder("traces") / MOONCAKE).read_text().splitlines()
    hashes = [json.loads(line)["hash_ids"] for line in lines]
    seen, hits = set[int](), 0
    for one in hashes:
        hits += sum(block in seen for block in one)
        seen.update(one)
    total = sum(map(len, hashes))
    unlimited = hit_rate(requests, 512, blocks=None)
    assert unlimited == hits / total
    rates = [hit_rate(requests, 512, blocks=blocks) for blocks in (100, 500, 2000, 5000, 20_000)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] == unlimited
    assert [hit_rate(requests, 512, blocks=b, cache=BlockPool(512)) for b in (100, 2000)] == rates[::2][:2]
    assert hit_rate(requests, 16, blocks=2000 * 32, cache=RadixCache(16)) == rates[2]
