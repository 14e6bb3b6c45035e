"""Numbers of profiles: every one may have its origin; those of the construction may also be plain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simoffload.documents import Document, read_document, validate
from simoffload.errors import InputError
from simoffload.hardware import KINDS
from simoffload.scenario import read_scenario

SHIPPED = Path(__file__).parents[2] / "hardware_profiles"
SOURCE = {"origin": "spec", "source": "the manual", "date": "2026-11-21"}
OF_CONSTRUCTION = {
    "pcie/gen5": ["copy_lanes"],
    "raid/raid0-4x-9400-7.68tb": ["count", "level"],
    "nfs/nfs-100gbe": ["links"],
    "pfs/lustre-generic": ["count"],
    "nvmeof/nvmeof-tcp-9400": ["links"],
    "remote/hgx-h20-mooncake": ["links"],
    "platform/dgx-a100": ["switches.*.lanes"],
}


def both_forms(data: dict[str, Any], keys: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a file with plain numbers at a path, and with the same numbers in the long form."""
    first, *rest = keys
    plain, long = dict(data), dict(data)
    for name in list(data) if first == "*" else [first]:
        if rest:
            plain[name], long[name] = both_forms(data[name], rest)
        else:
            plain[name] = data.get(name, 1)
            long[name] = {"value": plain[name], **SOURCE}
    return plain, long


@pytest.mark.parametrize(
    ("name", "key"), [(one, key) for one, keys in OF_CONSTRUCTION.items() for key in keys]
)
def test_numbers_of_the_construction_have_two_forms(name: str, key: str) -> None:
    data = read_document(SHIPPED / f"{name}.yaml").data
    plain, long = both_forms(data, key.split("."))
    kind = KINDS[name.partition("/")[0]]
    assert plain != long
    assert validate(Document("", long), kind) == validate(Document("", plain), kind)


def test_another_value_is_refused_with_both_forms() -> None:
    data = read_document(SHIPPED / "nfs/nfs-100gbe.yaml").data
    with pytest.raises(InputError) as error:
        validate(Document("nfs.yaml", {**data, "links": "two"}), KINDS["nfs"])
    form = "write {value: two, origin: …, source: …, date: …}"
    assert str(error.value) == f'nfs.yaml: links: must be a whole number or a mapping, got "two"; {form}'


@pytest.mark.parametrize(
    "assignment",
    [
        "links=2",
        "links.value=2",
        "links={value: 2, origin: spec, source: the manual, date: 2026-11-21}",
    ],
)
def test_a_scenario_changes_them_in_either_form(assignment: str) -> None:
    scenario = read_scenario("ddn/bloom-7b1", overrides=[f"profiles.intelliflash-h6202.{assignment}"])
    ports = scenario.machine.targets["nfs"].ports
    assert ports is not None
    assert ports.number == 2
