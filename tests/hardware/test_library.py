"""Finding files, the user's own profiles, and what is recorded about them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from simoffload.errors import InputError
from simoffload.hardware import list_profiles, load_platform, load_profile


def refuse(path: Path) -> str:
    """What loading a platform file complains about."""
    with pytest.raises(InputError) as caught:
        load_platform(path)
    return str(caught.value)


def test_machine_records_every_file_it_was_built_from(folder: Path) -> None:
    uses = load_platform(folder / "small.yaml").machine().profiles
    assert sorted((use.kind, use.id) for use in uses) == [
        ("accelerator", "chip"),
        ("drive", "disk"),
        ("host", "box"),
        ("nfs", "share"),
        ("nic", "port"),
        ("nvmeof", "far"),
        ("pcie", "wire"),
        ("pfs", "stripes"),
        ("platform", "small"),
        ("raid", "pair"),
        ("unmeasured", "elsewhere"),
    ]
    for use in uses:
        assert use.sha256 == hashlib.sha256(Path(use.path).read_bytes()).hexdigest()


def test_shipped_files_are_named_without_this_machine() -> None:
    uses = load_platform("rtx-4090-desktop").machine().profiles
    assert uses[0].path == "hardware_profiles/platform/rtx-4090-desktop.yaml"
    assert all(use.path.startswith("hardware_profiles/") for use in uses)


def test_inputs_are_given_as_they_were_written(folder: Path) -> None:
    inputs = load_platform(folder / "small.yaml").machine().inputs()
    origin = ("spec", "made up", "2026-11-20", "")
    assert ("small", "wiring[0]", "everything", "estimate", "made up", "2026-11-20", "") in inputs
    assert ("chip", "hbm_capacity", "10 GB", *origin) in inputs
    assert ("chip", "pcie.lanes", "16", *origin) in inputs
    assert ("wire", "host_to_device", "1 MB: 4 GB/s, 100 MB: 12 GB/s", *origin) in inputs
    assert ("box", "deepspeed.hook", "100 us", *origin) in inputs
    assert len(inputs) == len(set(inputs))


def test_profiles_of_the_user_come_first(folder: Path) -> None:
    text = (folder / "drive" / "disk.yaml").read_text()
    mine = text.replace("id: disk", "id: samsung-980-pro-2tb").replace("name: A drive", "name: Mine")
    (folder / "drive" / "samsung-980-pro-2tb.yaml").write_text(mine)
    assert load_profile("drive", "samsung-980-pro-2tb", root=folder).name == "Mine"
    names = {summary.id: summary.name for summary in list_profiles("drive", root=folder)}
    assert names["samsung-980-pro-2tb"] == "Mine"
    assert names["disk"] == "A drive"
    assert names["micron-9400-pro-7.68tb"] == "Micron 9400 PRO 7.68 TB"


def test_user_platform_mixes_own_and_shipped_profiles(folder: Path) -> None:
    path = folder / "mixed.yaml"
    text = (folder / "small.yaml").read_text()
    text = text.replace("accelerator: chip", "accelerator: l40s")
    path.write_text(text.replace("profile: disk, at", "profile: drive/disk.yaml, at"))
    machine = load_platform(path).machine()
    assert machine.accelerator.id == "l40s"
    assert machine.tiers["disk"].device == "disk"


def test_json_is_as_good_as_yaml(folder: Path) -> None:
    profile = load_profile("nfs", "share", root=folder)
    (folder / "nfs" / "twin.json").write_text(profile.model_dump_json())
    assert load_profile("nfs", "twin", root=folder) == profile


def test_folder_laid_out_like_the_shipped_one(folder: Path) -> None:
    path = folder / "platform" / "small.yaml"
    path.parent.mkdir()
    (folder / "small.yaml").rename(path)
    assert load_platform(path).machine().gpus == 4
    assert load_platform("small", root=folder).machine().gpus == 4


def test_path_is_relative_to_the_root(folder: Path) -> None:
    assert load_platform("small.yaml", root=folder).machine().gpus == 4
    with pytest.raises(InputError, match="is outside the folder from which files may be read"):
        load_platform("../small.yaml", root=folder / "drive")


@pytest.mark.parametrize(
    "reference", ["../secret.yaml", "drive/../../secret.yaml", "/etc/secret.yaml", "link.yaml"]
)
def test_references_may_not_leave_the_folder(folder: Path, reference: str) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "secret.yaml").write_text((folder / "drive" / "disk.yaml").read_text())
    (inner / "link.yaml").symlink_to(folder / "secret.yaml")
    path = inner / "small.yaml"
    path.write_text(
        (folder / "small.yaml").read_text().replace("profile: disk, at", f"profile: {reference}, at")
    )
    assert f'tiers.disk.profile: "{reference}" is outside the folder from which files may be read' in refuse(
        path
    )


def test_ids_do_not_follow_links_out_of_the_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "disk.yaml"
    (folder / "drive" / "disk.yaml").rename(elsewhere)
    (folder / "drive" / "disk.yaml").symlink_to(elsewhere)
    assert 'there is no drive "disk"' in refuse(folder / "small.yaml")


def test_unknown_platform_has_a_suggestion() -> None:
    with pytest.raises(InputError, match='there is no platform "dgx-a10"; did you mean "dgx-a100"'):
        load_platform("dgx-a10")


@pytest.mark.parametrize("name", ["", "DGX B100", "a" * 5000, "..", "x\ny"])
def test_odd_names_are_just_unknown(name: str) -> None:
    with pytest.raises(InputError, match="there is no platform"):
        load_platform(name)


def test_missing_file() -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml: no such file"):
        load_platform("nowhere.yaml")


def test_unknown_kind_is_refused() -> None:
    told = r'"drivs" is not a kind of profile; did you mean "drive".*; or import the module'
    with pytest.raises(InputError, match=told):
        list_profiles("drivs")


def test_file_of_another_kind_is_refused(folder: Path) -> None:
    assert "is a profile of kind drive, not platform" in refuse(folder / "drive" / "disk.yaml")
    path = folder / "small.yaml"
    path.write_text(path.read_text().replace("profile: disk, at", "profile: nic/port.yaml, at"))
    message = refuse(path)
    assert "tiers.disk.profile:" in message
    assert "is a profile of kind nic, not drive, raid, nfs, pfs, nvmeof or remote" in message
