"""A machine's profile is fitted again from its record: some keys are replaced, and all others stay."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from simoffload.documents import parse_yaml, read_document, yaml_text
from simoffload.errors import InputError
from validation import refit
from validation.refit import machines, refitted

RECORD, HOST, ACCELERATOR = "micro.json", "host.yaml", "accelerator.yaml"


@pytest.fixture
def folder(tmp_path: Path, repository: Path) -> Path:
    """A copy of the machine with the quickest fit."""
    copy = tmp_path / "fit" / "box"
    copy.mkdir(parents=True)
    for name in (RECORD, HOST, ACCELERATOR):
        shutil.copy(repository / "validation" / "measured" / "fit" / "h200-a" / name, copy)
    return copy


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_fit_replaces_its_keys_and_keeps_all_others(folder: Path) -> None:
    """The first fit is of a host as it was recorded, the second of one in which every number was edited."""
    before = contents(folder)
    first = refitted(folder)
    assert first.keys() == {HOST, ACCELERATOR}
    assert contents(folder) == before, "texts are returned, not written"
    for file, text in first.items():
        edited = {key: {"edited": key} for key in read_document(folder / file).data}
        (folder / file).write_text(yaml_text(edited, flow=True), "utf-8")
        fitted = {key: value for key, value in parse_yaml(text, name=file).data.items() if key in edited}
        again = parse_yaml(refitted(folder)[file], name=file).data
        replaced = {key for key in edited if again[key] != edited[key]}
        assert replaced == edited.keys() & set(refit._REFITTED[file])
        assert again == edited | {key: fitted[key] for key in replaced}


def test_a_key_that_the_profile_lacks_is_added(folder: Path) -> None:
    data = dict(read_document(folder / HOST).data)
    factor = data.pop("host_factor")
    (folder / HOST).write_text(yaml_text(data, flow=True), "utf-8")
    assert parse_yaml(refitted(folder)[HOST], name=HOST).data["host_factor"]["value"] == factor["value"]


def test_a_record_without_small_models_leaves_the_host_alone(folder: Path) -> None:
    raw = json.loads((folder / RECORD).read_text("utf-8"))
    del raw["sections"]["hooks"]
    (folder / RECORD).write_text(json.dumps(raw), "utf-8")
    assert refitted(folder).keys() == {ACCELERATOR}


@pytest.mark.parametrize("file", [RECORD, HOST, ACCELERATOR])
def test_a_file_that_cannot_be_read_leaves_nothing_half_written(folder: Path, file: str) -> None:
    text = (folder / file).read_text("utf-8")
    (folder / file).write_text("{" + text[: len(text) // 2], "utf-8")
    before = contents(folder)
    with pytest.raises(InputError, match=file):
        refitted(folder)
    assert contents(folder) == before


def test_an_unknown_machine_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refit, "_MEASURED", folder.parents[1])
    before = contents(folder)
    with pytest.raises(SystemExit, match="no record of h200-zz"):
        refit.main([folder.name, "h200-zz"])
    assert contents(folder) == before


@pytest.mark.parametrize(("name", "copied"), [("box", False), ("source", True), ("follower", True)])
def test_a_machine_with_anothers_profile_is_written_only_if_it_or_the_other_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, copied: bool
) -> None:
    monkeypatch.setattr(refit, "_MEASURED", folder.parents[1])
    monkeypatch.setattr(refit, "_SAME_PROFILE", {"follower": "source"})
    monkeypatch.setattr(refit, "refitted", lambda folder: {HOST: f"fitted: {folder.name}\n"})
    shutil.copytree(folder, folder.parent / "source")
    follower = folder.parent / "follower"
    follower.mkdir()
    (follower / HOST).write_text("old: yes\n", "utf-8")
    (follower / ACCELERATOR).write_text("old: yes\n", "utf-8")
    refit.main([name])
    assert ((follower / HOST).read_text("utf-8") != "old: yes\n") == copied


def test_machines_have_a_profile_and_a_record(folder: Path) -> None:
    for name in (RECORD, HOST):
        other = folder.parent / f"only {name}"
        other.mkdir()
        shutil.copy(folder / name, other)
    assert list(machines(folder.parents[1])) == [folder]
