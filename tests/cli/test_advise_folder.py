"""The recommended files: they run where they are written, and nothing of the user's own is lost."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from simoffload.cli import main
from simoffload.scenario import read_scenario
from simoffload.simulation import simulate
from tests.broken.slips import DRIVE, DS_CONFIG, PLATFORM
from tests.cli.conftest import SCENARIO

pytestmark = pytest.mark.usefixtures("known")
WHERE = ("--output-dir", "out", "--set", "workload.output_length=1")
RUN = ("run", "small.yaml", *WHERE)
AGAIN = ("advise", "small.yaml", "--set", "strategy.weights=dram", *WHERE)
OPT = {
    "model_type": "opt",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "ffn_dim": 4096,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 1024,
}
OWN = """\
name: own
model: {config: model}
platform: machine.yaml
workload: {batch_size: 2, prompt_length: 8, output_length: 1}
strategy: {ranks: 1, weights: nvme, ds_config: ds.json}
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder whose scenario refers to a model, a machine, a drive and a ds_config beside it."""
    files = {
        "s.yaml": OWN,
        "machine.yaml": PLATFORM.replace("samsung-980-pro-2tb", "drive.yaml"),
        "drive.yaml": DRIVE,
        "ds.json": DS_CONFIG,
        "model/config.json": json.dumps(OPT),
    }
    write(tmp_path / "own", files)
    return tmp_path / "own"


@pytest.mark.usefixtures("own")
def test_recommended_files_bring_what_they_refer_to(program, tmp_path: Path) -> None:
    """From another folder than the scenario's; ds_config is written into the scenarios."""
    answer = program("advise", "own/s.yaml", "--output-dir", "out")
    assert answer.status == 0, answer.err
    copies = tmp_path / "out" / "recommended"
    assert (copies / "drive.yaml").read_text() == DRIVE
    assert json.loads((copies / "model" / "config.json").read_text()) == OPT
    for path in copies.glob("0*.yaml"):
        simulate(read_scenario(path))
    assert program("advise", "own/s.yaml", "--output-dir", "out").status == 0, "once more"


def test_platforms_of_the_users_own_are_paths_from_here(program, own: Path, tmp_path: Path) -> None:
    write(own, {"other.yaml": PLATFORM.replace("test-platform", "other")})
    answer = program("advise", "own/s.yaml", "--on", "own/other.yaml:dram", "--output-dir", "out")
    assert answer.status == 0, answer.err
    for path in (tmp_path / "out" / "recommended").glob("0*.yaml"):
        assert read_scenario(path).machine.platform == "other"


@pytest.mark.usefixtures("own")
def test_platforms_that_recommended_scenarios_could_not_refer_to(program, tmp_path: Path) -> None:
    write(tmp_path, {"far.yaml": PLATFORM})
    for argv in (("--on", "./far.yaml:dram"), ("--platforms", "./far.yaml")):
        answer = program("advise", "own/s.yaml", *argv)
        assert answer.status == 2
        assert answer.err.startswith(
            f"error: {argv[0]}: ./far.yaml: must be inside the folder of the scenario"
        )


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of an earlier run."""
    folder = tmp_path_factory.mktemp("earlier")
    write(folder, {"small.yaml": SCENARIO})
    with contextlib.chdir(folder):
        assert main(AGAIN) == 0
    return folder / "out"


@pytest.fixture
def advised(earlier: Path, tmp_path: Path) -> Path:
    """The recommended files of an earlier run."""
    shutil.copytree(earlier, tmp_path / "out")
    return tmp_path / "out" / "recommended"


def test_earlier_recommendations_are_replaced(program, advised: Path) -> None:
    assert [path.name for path in advised.iterdir() if path.name.endswith("on-hbm.yaml")]
    assert program(*AGAIN, "--on", "gpu").status == 0
    assert [path.name for path in advised.iterdir() if path.name.endswith("on-hbm.yaml")] == []
    assert program(*RUN).status == 0
    assert not advised.exists()


@pytest.mark.parametrize("name", ["mine.yaml", "deep/er/mine.txt"])
def test_files_of_the_users_own_among_them_are_not_lost(program, advised: Path, name: str) -> None:
    write(advised, {name: "mine"})
    before = {path: path.read_bytes() for path in advised.rglob("*") if path.is_file()}
    refused = program(*AGAIN)
    assert (refused.status, refused.out) == (2, "")
    assert f'is not empty (it contains "recommended/{name}")' in refused.err
    assert {path: path.read_bytes() for path in advised.rglob("*") if path.is_file()} == before
    for command in (AGAIN, RUN):
        assert program(*command, "--overwrite").status == 0
        assert (advised / name).read_text() == "mine"
    assert [path for path in advised.rglob("*") if path.is_file()] == [advised / name]


def test_a_recommendation_that_was_edited_is_the_users_own(program, advised: Path) -> None:
    (first, *_) = sorted(advised.iterdir())
    first.write_text(first.read_text() + "# my notes\n")
    refused = program(*AGAIN)
    assert refused.status == 2
    assert f"recommended/{first.name}" in refused.err
    assert first.read_text().endswith("# my notes\n")


def test_links_among_them_are_not_followed(program, advised: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (advised / "model").symlink_to(tmp_path / "elsewhere")
    answer = program(*AGAIN, "--overwrite")
    assert answer.status == 2
    assert 'contains "recommended/model", which is not a plain file' in answer.err


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"recommended": 5}', '{"recommended": {"recommended/../x": "0"}}']
)
def test_a_result_that_was_changed_owns_nothing(program, advised: Path, content: str) -> None:
    signature = '{"schema": "simoffload/advice/1"}\n'
    (advised.parent / "result.json").write_text(signature + content)
    answer = program(*AGAIN)
    assert answer.status == 2
    assert 'it contains "recommended/' in answer.err
