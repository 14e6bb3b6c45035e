"""The section ``sweep`` of a scenario, as a file has it: its schema is made of these models, too."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from simoffload.documents import Frozen
from simoffload.errors import shortened

__all__ = ["AxisSection", "Bound", "RangeSection", "SweepSection"]

_QUANTITY = re.compile(r"([-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?) *([^\W\d_].{0,20})?")
_FORMS = "write {choices: [1, 2, 4]} or {range: {min: 1, max: 8, step: 1}}"


class Bound(NamedTuple):
    """A number, or a quantity such as ``10 GB/s``."""

    value: Decimal
    unit: str
    """As it was written; empty for a plain number."""
    written: int | float | str

    def __str__(self) -> str:
        return shortened(str(self.written))


def _bound(written: Any) -> Bound:
    match = None
    if isinstance(written, int | float | str) and not isinstance(written, bool):
        match = _QUANTITY.fullmatch(str(written).strip())
    try:
        if match:
            return Bound(Decimal(match[1]), match[2] or "", written)
    except InvalidOperation:
        pass
    raise ValueError(f'must be a number or a quantity such as 10 GB/s, got "{shortened(str(written))}"')


def _word(name: str) -> str:
    if not name.isidentifier():
        raise ValueError("must be a word of letters, digits and _, which constraints can use")
    return name


_BOUND_SCHEMA = {"anyOf": [{"type": "number"}, {"type": "string"}]}
_Bound = Annotated[Bound, PlainValidator(_bound), WithJsonSchema(_BOUND_SCHEMA)]
_Word = Annotated[str, AfterValidator(_word), Field(json_schema_extra={"pattern": r"^[^\W\d]\w*$"})]


def _one_of(*keys: str) -> ConfigDict:
    """One of the keys is given, and null is as good as not given."""
    given: list[JsonValue] = [
        {"required": [key], "properties": {key: {"not": {"type": "null"}}}} for key in keys
    ]
    return ConfigDict(json_schema_extra={"oneOf": given})


class RangeSection(Frozen):
    """Values from min to max, numbers or quantities such as 10 GB/s; give either step or n."""

    model_config = _one_of("step", "n")

    min: _Bound
    """The first value."""
    max: _Bound
    """No value is above it."""
    step: _Bound | None = None
    """From one value to the next."""
    n: Annotated[int, Field(strict=True, ge=1)] | None = None
    """How many values, both ends included."""
    scale: Literal["linear", "log"] = "linear"
    """Where values lie with n."""

    @model_validator(mode="after")
    def _is_decided(self) -> Self:
        if (self.step is None) == (self.n is None):
            raise ValueError("give either step or n (how many values)")
        return self


class AxisSection(Frozen):
    """The values of one path."""

    model_config = _one_of("choices", "range")

    choices: Annotated[list[Any], Field(min_length=1)] | None = None
    """The values, one after the other."""
    range: RangeSection | None = None
    """The values from one end to another."""
    name: _Word | None = None
    """Name of the column and in constraints; by default the path."""

    @model_validator(mode="before")
    @classmethod
    def _is_mapping(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValueError(f"must be a mapping; {_FORMS}")
        return data

    @model_validator(mode="after")
    def _is_decided(self) -> Self:
        if (self.choices is None) == (self.range is None):
            raise ValueError(f"give either choices or range; {_FORMS}")
        return self


class SweepSection(Frozen):
    """What ``simoffload sweep`` varies; other commands leave it out."""

    axes: dict[str, AxisSection] = Field(default={})
    """Paths in the scenario, such as workload.batch_size, with the values they take."""
    constraints: tuple[str, ...] = ()
    """Points to keep, such as "workload.batch_size * strategy.ranks <= 256"."""
