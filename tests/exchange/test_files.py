"""Files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload.exchange.files import replacing


def test_a_new_file(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.txt") as file:
        file.write("whole\n")
        assert not (tmp_path / "a.txt").exists()
    assert (tmp_path / "a.txt").read_text() == "whole\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines(["half", 1])  # type: ignore[list-item]
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "missing" / "a.txt"):
        pass
