"""Values from the command line replace those of the document."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from simoffload.documents import Edit, parse_yaml, set_value, validate
from simoffload.errors import InputError
from simoffload.units import Bytes

TEXT = """\
batch: 1
tiers:
  - {name: dram, capacity: 1 TB}
  - {name: raid, capacity: 15 TB}
model:
"""


def changed(*assignments: str) -> Any:
    """Return the tree after assignments."""
    document = parse_yaml(TEXT, name="s.yaml")
    for assignment in assignments:
        document = set_value(document, assignment)
    return document.data


KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters='\0"'), min_size=1, max_size=60)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**28), 10**28) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize(
    "text",
    [
        "8",
        "true",
        "null",
        "1e9",
        "~",
        "",
        "0x1f",
        "0o7",
        ".nan",
        "-.inf",
        "NO",
        "1_000",
        "1" * 40,
        "a: b",
        "#",
        "- a",
        "[1]",
        "{a: 1}",
        "&a",
        "*a",
        "!a",
        "<<",
        "---",
        "'8'",
        " a ",
        "a\nb",
        "\x85",
        "\u2028",
        "\x7f",
        "é",
        "😀",
    ],
)
def test_text_stays_text_as_an_assignment(text: str) -> None:
    assert read_back(Edit.at("batch", text)) == text


@given(VALUES)
def test_a_value_reads_back_from_its_assignment(value: object) -> None:
    assert repr(read_back(Edit.at("batch", value))) == repr(value)


@given(st.lists(KEYS, min_size=1, max_size=4), TEXTS)
def test_a_path_reads_back_from_its_assignment(keys: list[str], value: str) -> None:
    """Whatever its keys are, as long as they have no quotes: dots, brackets, equals signs."""
    assert read_back(Edit(("new", *keys), value)) == value


def read_back(edit: Edit) -> Any:
    """Return the value that ``--set`` writes at the path of the edit."""
    node = set_value(parse_yaml(TEXT, name="s.yaml"), edit.assignment).data
    for part in edit.path:
        node = node[part]
    return node


@pytest.mark.parametrize(
    ("assignment", "location", "value"),
    [
        ("batch=16", ["batch"], 16),
        ("batch = 16", ["batch"], 16),
        ("batch=1e3", ["batch"], 1000.0),
        ("batch='16'", ["batch"], "16"),
        ("batch=", ["batch"], None),
        ("batch=a=b", ["batch"], "a=b"),
        ("batch=NO", ["batch"], "NO"),
        ("batch=[1, {a: 2}]", ["batch"], [1, {"a": 2}]),
        ("tiers[1].capacity=40 GB", ["tiers", 1, "capacity"], "40 GB"),
        ("tiers.1.capacity=40 GB", ["tiers", 1, "capacity"], "40 GB"),
        ("tiers[0]={name: hbm}", ["tiers", 0], {"name": "hbm"}),
        ("tiers=[]", ["tiers"], []),
        ("tiers[0].curve.read=7 GB/s", ["tiers", 0, "curve", "read"], "7 GB/s"),
        ("model.layers=3", ["model", "layers"], 3),
        ("new.a.b=x", ["new", "a", "b"], "x"),
        ('new."llama-3.1".b=x', ["new", "llama-3.1", "b"], "x"),
        ("new.0=x", ["new", "0"], "x"),
    ],
)
def test_a_value_is_set(assignment: str, location: list[str | int], value: object) -> None:
    entry = changed(assignment)
    for part in location:
        entry = entry[part]
    assert entry == value
    assert type(entry) is type(value)


def test_the_document_itself_stays_as_it_was() -> None:
    document = parse_yaml(TEXT, name="s.yaml")
    other = set_value(document, "tiers[1].capacity=40 GB")
    assert document.data["tiers"][1]["capacity"] == "15 TB"
    assert other.data["tiers"] == [
        {"name": "dram", "capacity": "1 TB"},
        {"name": "raid", "capacity": "40 GB"},
    ]
    assert other.data["tiers"][0] is document.data["tiers"][0]
    assert document.position(("tiers", 1, "capacity")) == (4, 28)
    assert other.position(("tiers", 1, "capacity")) is None
    assert other.position(("tiers", 1, "name")) == (4, 12)


def test_the_last_assignment_wins() -> None:
    assert changed("batch=2", "batch=3")["batch"] == 3
    assert changed("new.a=1", "new.b=2")["new"] == {"a": 1, "b": 2}
    assert changed("new={a: 1}", "new=2")["new"] == 2


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("batch", '--set: "batch" has no value; write e.g. workload.batch_size=16'),
        ("", '--set: "" has no value; write e.g. workload.batch_size=16'),
        ("=3", '--set: "" is not the path of a key; write e.g. tiers[1].capacity=40 GB'),
        ("a..b=3", '--set: "a..b" is not the path of a key; write e.g. tiers[1].capacity=40 GB'),
        ("a.=3", '--set: "a." is not the path of a key; write e.g. tiers[1].capacity=40 GB'),
        ("a[x]=3", '--set: "a[x]" is not the path of a key; write e.g. tiers[1].capacity=40 GB'),
        ("a[-1]=3", '--set: "a[-1]" is not the path of a key; write e.g. tiers[1].capacity=40 GB'),
        ("batch.x=3", '--set: batch: this is a single value, so it has no entry "x"'),
        ("batch[0]=3", '--set: batch: this is a single value, so it has no entry "0"'),
        ("model[0]=3", "--set: model: this is a mapping and not a list, so it has no entry [0]"),
        ("tiers[2].name=x", "--set: tiers: entry [2] does not exist; the list has 2 entries, counted from 0"),
        (
            "tiers.raid=3",
            '--set: tiers: this is a list, so its entries have numbers, not names such as "raid"',
        ),
        ("batch=[1", None),
        ("batch=*x", '--set: batch: aliases ("*name") are not accepted; write the value out'),
        ("batch={a: 1, a: 2}", "--set: batch: key given twice (first on line 1)"),
        ("batch=!!int 3", '--set: batch: tags such as "!!int" are not accepted; remove the tag'),
        ("batch=1e400", "--set: batch: 1e400 is too large for a number (at most 1.8e308)"),
        ("batch=\x1b[2J", "--set: batch: not text: it contains the character U+001B"),
        ("batch=\udc80", "--set: batch: not text: it contains the character U+DC80"),
        ("batch=" + "[" * 40, "--set: batch: nested deeper than 32 levels"),
        ("a." * 40 + "a=1", None),
    ],
)
def test_refused_assignments(assignment: str, message: str | None) -> None:
    with pytest.raises(InputError) as caught:
        changed(assignment)
    (problem,) = caught.value.problems
    assert str(problem).startswith("--set: ")
    assert message in {None, str(problem)}


class Tier(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    capacity: Bytes


class Scenario(BaseModel):
    model_config = ConfigDict(extra="forbid")
    batch: int
    tiers: list[Tier]
    model: Tier | None = None


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "tiers[1].capacity=1e9",
            '--set: tiers[1].capacity: "1e9" has no unit; write e.g. "1e9 GB" or "1e9 GiB"',
        ),
        ("batch=x", '--set: batch: must be a whole number, got "x"'),
        ("batch=.inf", "--set: batch: must be a finite number, got .inf"),
        (
            "batches=2",
            '--set: batches: unknown key; did you mean "batch"? (known here: batch, tiers, model)',
        ),
        ("model.name=x", "--set: model.capacity: required key is missing"),
        ("tiers[0]={name: x}", "--set: tiers[0].capacity: required key is missing"),
        ("tiers=3", "--set: tiers: must be a list, got 3"),
    ],
)
def test_a_problem_with_a_set_value_does_not_blame_the_file(assignment: str, message: str) -> None:
    document = set_value(parse_yaml(TEXT, name="s.yaml"), assignment)
    with pytest.raises(InputError) as caught:
        validate(document, Scenario)
    assert str(caught.value) == message


def test_other_problems_still_name_the_file() -> None:
    document = set_value(parse_yaml(TEXT.replace("1 TB", "1 Tb"), name="s.yaml"), "batch=x")
    with pytest.raises(InputError) as caught:
        validate(document, Scenario)
    bits = "counts bits, and sizes are counted in bytes (1 B = 8 b)"
    assert str(caught.value).split("\n") == [
        f's.yaml:3:28: tiers[0].capacity: "1 Tb" {bits}; did you mean 1 TB?',
        '--set: batch: must be a whole number, got "x"',
    ]
