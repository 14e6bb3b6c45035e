"""Validation of documents: every error of pydantic becomes a helpful line."""

from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    Tag,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from simoffload.documents import Document, parse_json, parse_yaml, suggest, validate
from simoffload.errors import InputError
from simoffload.units import Bytes, BytesPerSecond, PositiveBytes, Seconds


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Dram(Strict):
    kind: Literal["dram"]
    capacity: PositiveBytes
    pinned: bool = False


class Nvme(Strict):
    kind: Literal["nvme"]
    capacity: PositiveBytes
    drives: int = Field(default=1, ge=1, le=2**31)
    read: BytesPerSecond | None = None
    latency: Seconds = 0.0


class Inline(Strict):
    layers: int
    family: Literal["bloom", "opt"] = "bloom"

    @model_validator(mode="after")
    def _even(self) -> Inline:
        if self.layers % 2:
            raise ValueError(f"{self.layers} layers are odd")
        return self


class Names(RootModel[dict[str, Inline]]):
    pass


class Scenario(Strict):
    tiers: list[Annotated[Dram | Nvme, Field(discriminator="kind")]] = Field(min_length=1)
    model: str | Inline = "bloom-176b"
    batch: int | Literal["auto"] = 1
    buffer: Bytes | Literal["auto"] = "auto"
    bounds: tuple[float, float] = (0.0, 1.0)
    models: dict[str, Inline] = {}
    names: Names | None = None
    share: float = Field(default=0.5, gt=0, lt=1.5)
    note: str = Field(default="x", min_length=1, max_length=4, pattern="^[a-z]+$")
    stride: int = Field(default=4, multiple_of=4)
    when: date | None = None
    generation: Literal[3, 4, 5] = 4
    many: list[int] = Field(default=[], max_length=2)
    renamed: int = Field(default=0, alias="bit-rate")

    @field_validator("renamed")
    @classmethod
    def _small(cls, value: int) -> int:
        if value > 9:
            raise PydanticCustomError("too_fast", "{value} is too fast", {"value": value})
        if value < 0:
            raise AssertionError("must not run backwards")
        return value


GOOD = "tiers: [{kind: dram, capacity: 1 TiB}]\n"


def problems(text: str, model: type[BaseModel] = Scenario, **options: Any) -> list[str]:
    """Return the lines about a text that is not a valid scenario."""
    with pytest.raises(InputError) as caught:
        validate(parse_yaml(text, name="s.yaml"), model, **options)
    return str(caught.value).split("\n")


def test_a_good_document_becomes_a_model() -> None:
    text = """\
tiers:
  - {kind: dram, capacity: 1 TiB, pinned: on}
  - {kind: nvme, capacity: 15.36 TB, read: 200 Gb/s, latency: 90 us}
model: {layers: 24}
batch: auto
bounds: [0, 0.5]
when: 2026-11-20
bit-rate: 3
"""
    scenario = validate(parse_yaml(text, name="s.yaml"), Scenario)
    assert scenario.tiers == [
        Dram.model_construct(kind="dram", capacity=2**40, pinned=True),
        Nvme.model_construct(
            kind="nvme", capacity=15_360_000_000_000, drives=1, read=25 * 10**9, latency=90e-6
        ),
    ]
    assert scenario.model == Inline(layers=24)
    assert scenario.batch == "auto"
    assert scenario.bounds == (0.0, 0.5)
    assert scenario.when == date(2026, 11, 20)
    assert scenario.renamed == 3


def test_every_problem_is_told_in_the_order_of_the_file() -> None:
    text = """\
batch: 1.5
tiers:
  - kind: nvme
    capcity: 1 TB
    drives: 0
    read: 6.9 GB
    latency: -5 us
  - kind: tape
  - capacity: 1e9
  - text
models:
  a.b: {layers: 3}
bounds: [1, 2, 3]
"""
    known = "(known here: kind, capacity, drives, read, latency)"
    assert problems(text) == [
        's.yaml:1:8: batch: must be a whole number or "auto", got 1.5',
        f's.yaml:4:5: tiers[0].capcity: unknown key; did you mean "capacity"? {known}',
        "s.yaml:5:13: tiers[0].drives: must be at least 1, got 0",
        's.yaml:6:11: tiers[0].read: "6.9 GB" is a size, not a rate; did you mean "6.9 GB/s"?',
        's.yaml:7:14: tiers[0].latency: must not be negative, got "-5 us"',
        's.yaml:8:11: tiers[1].kind: must be "dram" or "nvme", got "tape"',
        's.yaml:9:5: tiers[2].kind: required key is missing; choose "dram" or "nvme"',
        's.yaml:10:5: tiers[3]: must be a mapping, got "text"',
        's.yaml:12:8: models."a.b": 3 layers are odd',
        "s.yaml:13:9: bounds: must be a list of at most 2, got a list of 3",
    ]


FIELDS = ", ".join(field.alias or name for name, field in Scenario.model_fields.items())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("batches: 3", f'1: batches: unknown key; did you mean "batch"? (known here: {FIELDS})'),
        ("Tiers: 3", f'1: Tiers: unknown key; did you mean "tiers"? (known here: {FIELDS})'),
        ("renamed: 3", f'1: renamed: unknown key; did you mean "names"? (known here: {FIELDS})'),
        ("zzz: 3", f"1: zzz: unknown key (known here: {FIELDS})"),
        ('"\\e[2J": 3', f'1: "\\x1b[2J": unknown key (known here: {FIELDS})'),
        ("bit-rate: fast", '11: bit-rate: must be a whole number, got "fast"'),
        ("bit-rate: 12", "11: bit-rate: 12 is too fast"),
        ("bit-rate: -1", "11: bit-rate: must not run backwards"),
        ("bit-rate:", "10: bit-rate: must be a whole number, got nothing"),
        ("share: much", '8: share: must be a number, got "much"'),
        ("share: 0", "8: share: must be above 0, got 0"),
        ("share: 0.0", "8: share: must be above 0, got 0.0"),
        ("share: 15e-1", "8: share: must be below 1.5, got 15e-1"),
        ("share: .nan", "8: share: must be a finite number, got .nan"),
        ("bounds: [-.inf, 1]", "10: bounds[0]: must be a finite number, got -.inf"),
        ("bounds: [1]", "9: bounds[1]: required entry is missing"),
        ("bounds: x", '9: bounds: must be a list, got "x"'),
        ("note: 3", "7: note: must be text, got 3"),
        ("note: ''", '7: note: must be text of at least 1 characters, got ""'),
        ("note: abcdef", '7: note: must be text of at most 4 characters, got "abcdef"'),
        ("note: ABC", '7: note: must be text of the form ^[a-z]+$, got "ABC"'),
        ("stride: 0x6", "9: stride: must be a multiple of 4, got 0x6"),
        ("when: 2026-13-01", '7: when: must be a date such as 2026-11-20, got "2026-13-01"'),
        ("when: {}", "7: when: must be a date such as 2026-11-20, got a mapping"),
        ("generation: 6", "13: generation: must be 3, 4 or 5, got 6"),
        ("generation: four", '13: generation: must be 3, 4 or 5, got "four"'),
        ("many: [1, 2, 3]", "7: many: must be a list of at most 2, got a list of 3"),
        ("models: []", "9: models: must be a mapping, got a list of 0"),
        ("models: {a: {layers: x}}", '22: models.a.layers: must be a whole number, got "x"'),
        ("models: {a: {leyers: 2, layers: 2}}", None),
        ("names: {a: {layers: 2, famly: opt}}", None),
        ("names: {a: {layers: 2, family: op}}", None),
        ("model: 7", "8: model: must be text or a mapping, got 7"),
        ("model: {layers: x}", '17: model.layers: must be a whole number, got "x"'),
        ("model: {layers: 7}", "8: model: 7 layers are odd"),
        ("model: {layer: 7, layers: 2}", None),
        ("model: {family: opt}", "8: model.layers: required key is missing"),
        ("batch: aut", '8: batch: must be a whole number or "auto", got "aut"; did you mean "auto"?'),
        (
            "buffer: 1e9",
            '9: buffer: "1e9" has no unit; write e.g. "1e9 GB" or "1e9 GiB"; or must be "auto", got 1e9',
        ),
        (
            f"batch: {'x' * 99}",
            f'8: batch: must be a whole number or "auto", got "{"x" * 40}…"',
        ),
        ('batch: "a\\nb\\u202e"', '8: batch: must be a whole number or "auto", got "a\\nb\\u202e"'),
    ],
)
def test_one_problem(text: str, problem: str | None) -> None:
    (line,) = problems(GOOD + text)
    if problem is not None:
        assert line == f"s.yaml:2:{problem}"
    else:
        assert 'did you mean "' in line


def test_choices_of_a_value_come_with_the_nearest() -> None:
    (line,) = problems(GOOD + "models: {a: {layers: 2, family: opts}}")
    assert line == ('s.yaml:2:33: models.a.family: must be "bloom" or "opt", got "opts"; did you mean "opt"?')


def test_a_required_choice_is_told() -> None:
    class Tape(Strict):
        speed: Literal["slow", "slower"] | None
        count: int | Literal["auto"]

    assert problems("{}", Tape) == [
        's.yaml:1:1: speed: required key is missing; choose "slow" or "slower"',
        "s.yaml:1:1: count: required key is missing",
    ]


class Level(Enum):
    RAID0 = "raid0"
    RAID5 = "raid5"


def test_members_of_an_enumeration() -> None:
    class Array(Strict):
        level: Level
        spare: Literal[Level.RAID5] = Level.RAID5

    assert validate(parse_yaml("level: raid0", name="s.yaml"), Array).level is Level.RAID0
    first, second = problems("level: raid55\nspare: raid0", Array)
    assert first == 's.yaml:1:8: level: must be "raid0" or "raid5", got "raid55"; did you mean "raid5"?'
    assert second.startswith("s.yaml:2:8: spare: must be ")


def test_a_long_list_of_choices_is_cut() -> None:
    choices = [f"c{number:02}" for number in range(32)]
    few: Any = Literal[tuple(choices)]
    shape = create_model("Shape", kind=(few, "c00"))
    (line,) = problems("kind: x", shape)
    shown = ", ".join(f'"{choice}"' for choice in choices[:30])
    assert line == f's.yaml:1:7: kind: must be {shown} and 2 more, got "x"'


def test_a_key_may_be_called_as_the_tag_of_a_union() -> None:
    class Raid(Strict):
        kind: Literal["raid"]
        raid: Inline

    class Box(Strict):
        target: Annotated[Raid | Dram, Field(discriminator="kind")]

    assert problems("target: {kind: raid, raid: {layers: x, raid: 3}}", Box) == [
        's.yaml:1:37: target.raid.layers: must be a whole number, got "x"',
        "s.yaml:1:40: target.raid.raid: unknown key (known here: layers, family)",
    ]


def test_a_union_without_tags_tells_of_every_member() -> None:
    class Box(Strict):
        size: Dram | Inline

    assert problems("size: {layers: x}", Box) == [
        's.yaml:1:7: size.kind: required key is missing; choose "dram"',
        "s.yaml:1:7: size.capacity: required key is missing",
        's.yaml:1:16: size.layers: must be a whole number, got "x"',
    ]


def test_a_function_may_tell_the_members_of_a_union_apart() -> None:
    def tag(value: object) -> str | None:
        return {str: "text", dict: "shape", int: "number"}.get(type(value))

    class Box(Strict):
        model: Annotated[Annotated[str, Tag("text")] | Annotated[Inline, Tag("shape")], Discriminator(tag)]

    assert problems("model: {layers: x}", Box) == [
        's.yaml:1:17: model.layers: must be a whole number, got "x"'
    ]
    assert problems("model: []", Box) == [
        "s.yaml:1:8: model: unable to extract tag using discriminator tag()"
    ]
    (line,) = problems("model: 3", Box)
    assert line.startswith("s.yaml:1:8: model: input tag 'number' found using tag() does not match")


def test_a_part_of_a_document() -> None:
    document = parse_yaml("models:\n  - layers: 2\n  - layers: x\n", name="s.yaml")
    assert validate(document, Inline, at=("models", 0)) == Inline(layers=2)
    assert problems("models:\n  - layers: 2\n  - layers: x\n", Inline, at=("models", 1)) == [
        's.yaml:3:13: models[1].layers: must be a whole number, got "x"'
    ]
    assert problems("models:\n  a: 1", Inline, at=("models", "b")) == [
        "s.yaml:2:3: models.b: required key is missing"
    ]
    assert problems("models:\n  a: 1", Inline, at=("models", "a", "b")) == [
        "s.yaml:2:6: models.a.b: required key is missing"
    ]


def test_json_has_positions_too() -> None:
    document = parse_json('{\n  "tiers": [{"kind": "dram", "capacity": 4e10}]\n}', name="s.json")
    with pytest.raises(InputError) as caught:
        validate(document, Scenario)
    assert str(caught.value) == (
        's.json:2:42: tiers[0].capacity: "4e10" has no unit; write e.g. "4e10 GB" or "4e10 GiB"'
    )


def test_a_tree_without_positions() -> None:
    with pytest.raises(InputError) as caught:
        validate(Document("request", {"layers": 2, "family": True}), Inline)
    assert str(caught.value) == 'request: family: must be "bloom" or "opt", got True'


def test_no_more_problems_than_people_read() -> None:
    lines = problems(GOOD + f"models: [{'{}, ' * 100}]\n" + "many: [x, " + "y, " * 200 + "]")
    assert len(lines) == 2
    lines = problems("\n".join(f"k{i}: {i}" for i in range(100)), Inline)
    assert len(lines) == 51
    assert lines[-1] == "s.yaml: and 51 more problems"


@pytest.mark.parametrize(
    ("word", "choices", "hint"),
    [
        ("dgx_a100", ["dgx-a100", "dgx-h100"], '; did you mean "dgx-a100"?'),
        ("DGX-H100", ["dgx-a100", "dgx-h100"], '; did you mean "dgx-h100"?'),
        ("raid4", ["RAID5", "hbm"], '; did you mean "RAID5"?'),
        ("raid1", ["raid5", "raid6", "hbm"], '; did you mean "raid6" or "raid5"?'),
        ("tape", ["hbm", "dram"], ""),
        ("", ["hbm"], ""),
        ("x" * 10_000, ["hbm"], ""),
        ("hbm", [], ""),
    ],
)
def test_suggestions(word: str, choices: list[str], hint: str) -> None:
    assert suggest(word, choices) == hint
