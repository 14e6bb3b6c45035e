"""What is generated from the code is current, and shipped files are what the schemas say."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from simoffload.cli.schemas import kinds, schema_of
from simoffload.documents import parse_yaml, read_document

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

DOCS = Path(__file__).parents[1] / "docs"


def valid(kind: str, text: str) -> bool:
    return _is_valid(schema_of(kind), parse_yaml(text, name="text").data)


def _is_valid(schema: dict[str, Any], data: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(data))


def test_generated_files_are_current() -> None:
    generated = runpy.run_path(str(DOCS / "generate.py"))["files"]()
    stale = [name for name, text in generated.items() if (DOCS / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run: make reference"
    present = [*(DOCS / "schema").iterdir(), *(DOCS / "reference").iterdir()]
    assert sorted(str(path.relative_to(DOCS)) for path in present) == sorted(generated)


@pytest.mark.parametrize("kind", kinds())
def test_schemas_are_schemas(kind: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema_of(kind))


@pytest.mark.parametrize(("kind", "folder"), [("scenario", "scenarios"), ("profile", "hardware_profiles")])
def test_shipped_files_are_valid(kind: str, folder: str) -> None:
    validator = jsonschema.Draft202012Validator(schema_of(kind))
    files = sorted((DOCS.parent / folder).rglob("*.yaml"))
    found = [
        (path.name, error.message)
        for path in files
        for error in validator.iter_errors(read_document(path).data)
    ]
    assert found == []
    assert len(files) > 30


SCENARIO = """
name: small
model: bloom-560m
platform: dgx-a100
workload: {batch_size: 1, prompt_length: 8, output_length: 2}
strategy: {ranks: 1, weights: dram}
"""


@pytest.mark.parametrize(
    "change",
    [
        "nodes: 2",
        "engine: {timeout: 10 min}",
        "sweep: {axes: {workload.batch_size: {choices: [1, 2]}}}",
        "sweep: {axes: {nodes: {range: {min: 1, max: 8, step: 1}}}, constraints: [nodes < 4]}",
        "sweep: {axes: {nodes: {range: {min: 1 GB/s, max: 8 GB/s, n: 2, step: null}, name: rate}}}",
        "dataset: {tier: raid, sample_size: 16 KiB, samples: 100}",
    ],
)
def test_what_a_scenario_may_hold(change: str) -> None:
    assert valid("scenario", f"{SCENARIO}{change}")


@pytest.mark.parametrize(
    "change",
    [
        "node: 2",
        "nodes: 0",
        "engine: {timeout: 600}",
        "engine: {timeout: 10 GB}",
        "engine: {rank_symmetry: maybe}",
        "sweep: {axes: {workload.batch_size: [1, 2]}}",
        "sweep: {axes: {nodes: {range: {min: 1, max: 8}}}}",
        "sweep: {axes: {nodes: {range: {min: 1, max: 8, n: 2, step: 1}}}}",
        "sweep: {axes: {nodes: {range: {min: 1, max: 8, step: null}}}}",
        "sweep: {axes: {nodes: {range: {min: true, max: 8, n: 2}}}}",
        "sweep: {axes: {nodes: {choices: [1], name: 2b}}}",
        "sweep: {axes: {nodes: {}}}",
        "sweep: {axis: {}}",
        "dataset: {tier: raid, sample_size: 16384, samples: 100}",
    ],
)
def test_what_it_may_not(change: str) -> None:
    assert not valid("scenario", f"{SCENARIO}{change}")


def test_a_quantity_is_text_with_a_unit() -> None:
    size = schema_of("profile")["$defs"]["SourcedSize"]["properties"]["value"]
    assert (size["type"], size["title"], size["examples"]) == ("string", "size", ["40 GB", "40 GiB"])
    rendered = {
        text: _is_valid(size, text)
        for text in ("40 GB", "1.5e3 KiB", "40GB", "40 Gb", "40", "-1 GB", "40 GB/s")
    }
    assert [text for text, accepted in rendered.items() if accepted] == ["40 GB", "1.5e3 KiB", "40GB"]


def test_fields_are_described_by_their_docstrings() -> None:
    writer = schema_of("scenario")["$defs"]["Writer"]["properties"]
    assert (
        writer["io_buffer_double"]["description"]
        == "Whether one half of the buffer is filled while the other half is written."
    )
    assert writer["io_buffer_size"]["default"] == "64 MiB"
    assert writer["data_parallel"]["description"].startswith("DeepSpeed's `data_parallel`: which ranks"), (
        "its type's"
    )


def test_every_key_of_a_profile_has_a_meaning() -> None:
    models = schema_of("profile")["$defs"]
    said_by_the_model = {"kind", "float16", "bfloat16", "float8"}
    assert [
        f"{name}.{key}"
        for name, model in models.items()
        for key, one in model["properties"].items()
        if "description" not in one and key not in said_by_the_model
    ] == []


def test_the_file_that_editors_are_given_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from simoffload.cli import main

    assert main(["schema", "scenario"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((DOCS / "schema" / "scenario.json").read_text())
    assert main(["schema", "senario"]) == 2
    assert 'did you mean "scenario"?' in capsys.readouterr().err
