"""GGUF files on the command line: what ``check`` says of them, and what ``advise`` leaves to the user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simoffload.scenario import read_scenario
from simoffload.simulation import simulate
from tests.models.gguf_files import llama, llama_tensors, written


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file of some 7 billion weights, whose data is a hole."""
    sizes = {"layers": 32, "vocabulary": 32_000, "hidden": 4096, "wide": 11_008}
    return written(tmp_path / "seven.gguf", llama(**sizes), llama_tensors(**sizes))


@pytest.mark.usefixtures("model")
def test_check_says_what_is_in_a_file_and_where_it_has_room(program) -> None:
    """Of 32 layers: attention but for the values of the first, gate and up in Q4_K; down in Q6_K."""
    hidden, wide, gib = 4096, 11_008, 1 << 30
    answer = program("check", "seven.gguf")
    assert answer.status == 0, answer.err
    assert "seven.gguf: ok (GGUF file: seven, q4_k_m, llama with 32 layers: " in answer.out
    q4 = hidden * 32_000 + 32 * (2 * hidden**2 + hidden**2) + 64 * hidden * wide - hidden**2 // 2
    q6 = hidden * 32_000 + 32 * hidden * wide + hidden**2 // 2
    sizes = q4 * 144 / 256 / gib, q6 * 210 / 256 / gib
    assert f"(q4_k {sizes[0]:.2f} GiB, q6_k {sizes[1]:.2f} GiB, f32 1.02 MiB)" in answer.out
    assert "all of it has room in NVIDIA GeForce RTX 3070 Ti 8 GB, and in larger GPUs" in answer.out


@pytest.mark.usefixtures("model")
def test_a_file_is_no_profile(program) -> None:
    answer = program("profiles", "check", "seven.gguf")
    assert (answer.status, answer.err.count("error:")) == (2, 1)
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(("length", "message"), [(100, "is truncated"), (None, "no such file")])
def test_a_broken_file_gets_one_message(program, model: Path, length: int | None, message: str) -> None:
    if length is None:
        model.unlink()
    else:
        os.truncate(model, length)
    answer = program("check", "seven.gguf")
    assert (answer.status, answer.err.count("error:")) == (2, 1)
    assert f"error: seven.gguf: {message}" in answer.err


def test_advice_says_that_its_scenarios_need_the_file(program, model: Path, tmp_path: Path) -> None:
    sets = ("--gpu", "rtx-3070-ti", "--set", "strategy.kind=llama_cpp", "--output-dir", "out")
    answer = program("advise", "seven.gguf", *sets)
    assert answer.status == 0, answer.err
    assert "need seven.gguf in that folder" in answer.err
    folder = tmp_path / "out" / "recommended"
    first, *_ = sorted(folder.glob("*.yaml"))
    (folder / model.name).hardlink_to(model)
    assert simulate(read_scenario(first)).fits
