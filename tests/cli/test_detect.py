"""``simoffload detect``: a platform file that the other commands take."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Program
from tests.hardware.machines import recorded


def test_the_file_is_checked_and_used(program: Program, tmp_path: Path) -> None:
    root = recorded(tmp_path / "root", "virtual")
    answer = program("detect", "--root", str(root), "-o", "machine")
    assert answer.status == 0, answer.err
    assert "assumed: a rtx-4090, because no GPU was seen" in answer.out
    assert "not seen: nvidia-smi (not recorded)" in answer.out
    assert program("check", "machine.yaml").status == 0
    ran = program("run", "opt-125m", "--set", "platform=machine.yaml", "--json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["platform"] == "machine"


def test_a_file_is_replaced_only_on_demand(program: Program, tmp_path: Path) -> None:
    root = str(recorded(tmp_path / "root", "virtual"))
    Path("machine.yaml").write_text("mine")
    refused = program("detect", "--root", root, "-o", "machine")
    assert refused.status == 2
    assert "machine.yaml: exists; name another file or give --overwrite" in refused.err
    assert Path("machine.yaml").read_text() == "mine"
    assert program("detect", "--root", root, "-o", "machine", "--force").status == 0
    assert Path("machine.yaml").read_text().startswith("# Written by simoffload detect")


def test_json_and_standard_output(program: Program, tmp_path: Path) -> None:
    root = str(recorded(tmp_path / "root", "virtual"))
    data = json.loads(program("detect", "--root", root, "--json").out)
    assert data["schema"] == "simoffload/detect/1"
    assert program("detect", "--root", root).out.strip() == data["text"].strip()


def test_a_missing_root_is_one_message(program: Program) -> None:
    answer = program("detect", "--root", "nowhere")
    assert answer.status == 2
    assert answer.err == "error: nowhere: is not a folder with the files of a recorded machine\n"
