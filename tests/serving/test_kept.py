"""What is kept on disk: steps for later runs, and streams whose process is killed."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

import simoffload as so
from simoffload.documents import parse_yaml
from simoffload.planning.streams import StreamResult
from simoffload.scenario import LoadedScenario, resolve
from simoffload.serving import kept
from simoffload.serving.prefixes import RadixCache
from simoffload.serving.replica import Replica, turns
from simoffload.serving.scheduler import ReplicaState, VllmScheduler
from simoffload.serving.simulate import StreamSimulation
from simoffload.serving.steps import SimulatedSteps
from tests.serving.streams import Linear, poisson, replay

TEXT = """\
name: a stream
model: llama-3.1-8b
platform: h100-1gpu-vm
strategy: {kind: tensor_parallel, compiled: true}
stream:
  num_prompts: 40
  replications: 2
  arrivals: {kind: poisson, request_rate: 8}
  prompt: {kind: fixed, tokens: 600}
  output: {kind: fixed, tokens: 40}
"""
LONG = TEXT.replace("num_prompts: 40", "num_prompts: 9000").replace("replications: 2", "replications: 1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of kept files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "simoffload"


def scenario(text: str = TEXT, *overrides: str) -> LoadedScenario:
    return resolve(parse_yaml(text, name="stream.yaml"), overrides=overrides)


def counted(monkeypatch: pytest.MonkeyPatch, text: str = TEXT, *overrides: str) -> tuple[StreamResult, int]:
    """Return the answer, and how many steps were simulated for it."""
    calls, simulated = [0], SimulatedSteps.__call__

    def count(self: SimulatedSteps, batch: object) -> object:
        calls[0] += 1
        return simulated(self, batch)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedSteps, "__call__", count)
        return so.stream(scenario(text, *overrides)), calls[0]


def test_steps_are_simulated_once(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    first, simulated = counted(monkeypatch)
    assert simulated == first.evaluations > 20
    again, more = counted(monkeypatch)
    assert more == 0
    assert again.to_dict() == first.to_dict()
    assert len(list((folder / "steps").iterdir())) == 1
    assert not list((folder / "streams").glob("*"))
    _, other = counted(monkeypatch, TEXT, "stream.arrivals.request_rate=9")  # other requests, the same steps
    assert other < simulated / 2
    _, other = counted(monkeypatch, TEXT, "model=qwen3-14b")
    assert other > simulated / 2


DAMAGES = (b"", b"nothing", b"[[1, 2]]", b'{"a": 1}', b"[[1,1,1,1,NaN,0,0]]", b"[" * 99_999)


def test_damaged_steps_are_simulated_again(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    few = "stream.num_prompts=4", "stream.replications=1"
    _, simulated = counted(monkeypatch, TEXT, *few)
    (file,) = (folder / "steps").iterdir()
    whole = file.read_bytes()
    sums = (zlib.crc32(one).to_bytes(4, "big") + one for one in DAMAGES)
    for content in (b"", b"nothing", whole[:-9], *sums):
        file.write_bytes(content)
        assert counted(monkeypatch, TEXT, *few)[1] == simulated
        assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert counted(monkeypatch)[1] > 20


def test_files_are_bounded(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(kept, "_MOST_FILES", 3)
    for number in range(5):
        kept.KeptSteps(f"{number}").write({(1, 1, 1, number): (1.0, 0.0, 1.0)})
        time.sleep(0.01)
        kept.KeptSteps("0").read()  # used last
    assert {one.name for one in (folder / "steps").iterdir()} == {"0", "3", "4"}


def test_a_checkpoint_holds_no_code() -> None:
    class Evil:
        def __reduce__(self) -> object:
            return print, ("evil",)

    checkpoints = kept.StreamCheckpoints("key")
    nested = b"csimoffload.serving.kept\nos.system\n."
    function = nested.replace(b"os.system", b"_write")
    for data in (pickle.dumps(Evil()), pickle.dumps(np.zeros(2)), nested, function):
        kept._write(checkpoints._path("part"), data)
        assert checkpoints.load("part") is None


@pytest.mark.parametrize("shared", [False, True])
def test_a_replica_goes_on_where_it_was(shared: bool) -> None:
    requests = poisson(400, 3.0, output=(2, 200))
    if shared:
        runs = [((row % 7, 200), (row + 10, 700)) for row in range(400)]
        requests = requests._replace(runs=runs, prompt=np.full(400, 900))

    def replica() -> Replica:
        return Replica(
            scheduler=VllmScheduler(max_num_batched_tokens=512, max_num_seqs=24),
            state=ReplicaState(blocks=260, cache=RadixCache()),
            times=Linear(),
        )

    whole = replay(requests, blocks=260, budget=512, max_seqs=24, cache=RadixCache(), async_scheduling=True)
    assert whole.preemptions.sum() > 3
    going = replica()
    going.expect(requests)
    while going.until < np.inf:
        for _ in range(150):
            going.until = going.resume(going.until)
            if going.until == np.inf:
                break
        saved, going = pickle.dumps(going), replica()
        going.restore(pickle.loads(saved), requests.runs)
    assert list(turns(going)) == []
    for one, other in zip(whole[:8], going.served[:8], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(whole.log.begin, going.served.log.begin)


KILLED = """\
import sys
import simoffload as so
from simoffload.serving import kept

kept.INTERVAL = 0.1
so.stream(sys.argv[1])
"""


def test_a_stream_that_is_killed_goes_on(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stream.yaml"
    file.write_text(LONG)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(file)], cwd=Path(__file__).parents[2])
    until = time.monotonic() + 120
    while not [one for one in (folder / "streams").glob("*") if not one.suffix] and time.monotonic() < until:
        time.sleep(0.02)  # until a file is written as a whole
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    begun = []
    restore = Replica.restore

    def restoring(self: Replica, other: Replica, runs: object) -> None:
        restore(self, other, runs)  # type: ignore[arg-type]
        begun.append(self.done)

    monkeypatch.setattr(Replica, "restore", restoring)
    resumed = so.stream(str(file)).to_dict()
    assert begun
    assert begun[0] > 1000
    assert not list((folder / "streams").glob("*"))
    begun.clear()
    assert so.stream(str(file)).to_dict() == resumed
    assert not begun


def test_a_part_of_another_stream_is_not_taken() -> None:
    one = StreamSimulation(scenario())
    other = StreamSimulation(scenario(TEXT, "stream.seed=1"))
    assert one.checkpoints._path("x") != other.checkpoints._path("x") != one.checkpoints._path("y")
