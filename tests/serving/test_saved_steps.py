"""What is kept on disk: steps for later runs, and streams whose process is killed."""

from __future__ import annotations

import json
import os
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
from simoffload.errors import WorkLimitError
from simoffload.extensions.serving import saved_steps
from simoffload.extensions.serving.prefixes import RadixCache
from simoffload.extensions.serving.replica import Replica, turns
from simoffload.extensions.serving.scheduler import ReplicaState, VllmScheduler
from simoffload.extensions.serving.simulate import StreamSimulation
from simoffload.extensions.serving.steps import SimulatedSteps
from simoffload.extensions.serving.streams import StreamResult
from simoffload.scenario import LoadedScenario, resolve
from tests.serving.streams import Linear, poisson, replay

TEXT = """\
name: a stream
model: llama-3.1-8b
platform: h100-1gpu-vm
strategy: {kind: vllm}
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
    """An empty folder of kept files, with nothing registered by other tests."""
    for name in ("families.registered_outside", "registry.registered_outside", "formats_from_outside"):
        monkeypatch.setattr(f"simoffload.extensions.serving.saved_steps.{name}", tuple)
    for name in ("registered", "extensions"):
        monkeypatch.setattr(f"simoffload.extensions.serving.saved_steps.{name}", ())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "simoffload"


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests were done where parts went on."""
    found, restore = list[int](), Replica.restore

    def restoring(self: Replica, other: Replica, runs: object) -> None:
        restore(self, other, runs)  # type: ignore[arg-type]
        found.append(self.done)

    monkeypatch.setattr(Replica, "restore", restoring)
    return found


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


DAMAGES = (
    b"",
    b"nothing",
    b"[[1, 2]]",
    b'{"a": 1}',
    b"[[1,1,1,1,NaN,0,0]]",
    b"[[Infinity,1,1,1,1,0,0]]",
    b"[[1,1,1,1,1%s,0,0]]" % (b"0" * 400),
    b"[" * 99_999,
)


def test_damaged_steps_are_simulated_again(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    few = "stream.num_prompts=4", "stream.replications=1"
    _, simulated = counted(monkeypatch, TEXT, *few)
    (file,) = (folder / "steps").iterdir()
    whole = file.read_bytes()
    timeless = json.dumps([[*point[:4], 0, 0, 0] for point in json.loads(whole[4:])]).encode()
    sums = (zlib.crc32(one).to_bytes(4, "big") + one for one in (*DAMAGES, timeless))
    for content in (b"", b"nothing", whole[:-9], *sums):
        file.write_bytes(content)
        assert counted(monkeypatch, TEXT, *few)[1] == simulated
        assert file.read_bytes() == whole


def test_steps_are_kept_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {(1, 1, 1, one): (1.0, 0.0, float(one + 1)) for one in range(160)}
    saved_steps.SavedSteps("key").write(dict(list(steps.items())[:100]))
    saved_steps.SavedSteps("key").write(dict(list(steps.items())[100:]))
    assert saved_steps.SavedSteps("key").read() == steps
    monkeypatch.setattr(saved_steps, "_MOST_POINTS", 100)
    saved_steps.SavedSteps("key").write({(2, 2, 2, 2): (1.0, 0.0, 1.0)})
    found = saved_steps.SavedSteps("key").read()
    assert len(found) == 100
    assert (2, 2, 2, 2) in found


@pytest.mark.parametrize("name", ["file", "x" * 300, "closed/inside"])
def test_a_folder_that_cannot_be_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "closed").mkdir(mode=0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    monkeypatch.setattr(saved_steps, "INTERVAL", 0.0)
    assert counted(monkeypatch)[1] > 20


OUTSIDE = """\
import sys
from examples import checked_layers
import simoffload as so

so.stream(sys.argv[1])
"""


def test_nothing_is_kept_with_a_strategy_from_outside(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "stream.yaml"
    file.write_text(TEXT.replace("num_prompts: 40", "num_prompts: 4"))
    for program, number in ((OUTSIDE, 0), (KILLED, 1)):
        subprocess.run([sys.executable, "-c", program, str(file)], cwd=Path(__file__).parents[2], check=True)
        assert len(list(folder.glob("steps/*"))) == number


def test_what_was_used_first_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_steps, "INTERVAL", 0.0)
    now = time.time()

    def write(key: str, *, age: float, parts: int = 1) -> None:
        checkpoints = saved_steps.StreamCheckpoints(key)
        for part in range(parts):
            checkpoints.note(f"{part}", b"x" * 1000)
        assert all(saved_steps.StreamCheckpoints(key).load(f"{part}") for part in range(parts))
        for one in (checkpoints._folder, *checkpoints._folder.rglob("*")):
            os.utime(one, (now - age, now - age))

    def left() -> set[str]:
        return {
            key for key in ("old", "large", "search") if saved_steps.StreamCheckpoints(key)._folder.exists()
        }

    write("old", age=40 * 86400)
    write("large", age=1000, parts=50)
    assert left() == {"large"}  # and not "old", as soon as another one is written
    monkeypatch.setattr(saved_steps, "_MOST_BYTES", 50_000)
    write("search", age=0, parts=100)  # never one's own
    assert left() == {"search"}
    monkeypatch.setattr(saved_steps, "INTERVAL", 30.0)
    saved_steps.SavedSteps("key").write({(1, 1, 1, 1): (1.0, 0.0, 1.0)})
    assert left() == {"search"}  # which may be at work


def test_steps_in_use_are_removed_beyond_the_size_of_all(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    steps = {(1, 1, 1, one): (1.0, 0.0, 1.0) for one in range(100)}

    def write(key: str) -> None:
        saved_steps.SavedSteps(key).write(steps)
        if (file := folder / "steps" / key).exists():
            os.utime(file, (time.time() - 60 + len(written), time.time() - 60 + len(written)))
        written.append(key)

    written = list[str]()
    write("0")
    size = (folder / "steps" / "0").stat().st_size
    monkeypatch.setattr(saved_steps, "_MOST_BYTES", 4 * size)
    for key in "123":
        write(key)
    assert saved_steps.SavedSteps("0").read() == steps  # used last now
    (folder / "steps" / "4.123").write_bytes(b"")  # of a process that was killed, or is about to rename it
    for key in "456":
        write(key)
        assert sum(one.stat().st_size for one in folder.glob("steps/*")) <= 4 * size
    assert {one.name for one in folder.glob("steps/?")} == {"0", *"456"}


def test_a_checkpoint_holds_no_code() -> None:
    class Evil:
        def __reduce__(self) -> object:
            return print, ("evil",)

    checkpoints = saved_steps.StreamCheckpoints("key")
    nested = f"c{saved_steps.__name__}\nos.system\n.".encode()
    function = nested.replace(b"os.system", b"_write")
    for data in (pickle.dumps(Evil()), pickle.dumps(np.zeros(2)), nested, function):
        saved_steps._write(checkpoints._own / saved_steps._hash("part"), data, checkpoints._folder)
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
from simoffload.extensions.serving import saved_steps

saved_steps.INTERVAL = 0.1
so.stream(sys.argv[1])
"""


def test_a_stream_that_is_killed_goes_on(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, restored: list[int]
) -> None:
    file = tmp_path / "stream.yaml"
    file.write_text(LONG)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(file)], cwd=Path(__file__).parents[2])
    until = time.monotonic() + 120
    while not [one for one in folder.glob("streams/*/*/*") if not one.suffix] and time.monotonic() < until:
        time.sleep(0.02)  # until a file is written as a whole
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    monkeypatch.setattr(saved_steps, "_ALIVE", 0)
    resumed = so.stream(str(file)).to_dict()
    assert restored
    assert restored[0] > 1000
    assert not list((folder / "streams").glob("*"))
    restored.clear()
    assert so.stream(str(file)).to_dict() == resumed
    assert not restored


def stopped_after(monkeypatch: pytest.MonkeyPatch, parts: int, source: Path | LoadedScenario) -> str:
    """Stop a stream when so many parts of it are kept, and return the message."""
    note, count = saved_steps.StreamCheckpoints.note, [0]

    def stop(self: saved_steps.StreamCheckpoints, part: str, state: object, *, ended: bool = False) -> None:
        note(self, part, state, ended=ended)
        count[0] += ended
        if count[0] == parts:
            raise WorkLimitError("stopped by a limit")

    with monkeypatch.context() as patch:
        patch.setattr(saved_steps, "INTERVAL", 0.0)
        patch.setattr(saved_steps.StreamCheckpoints, "note", stop)
        try:
            return so.stream(source).stopped
        except WorkLimitError as error:
            return str(error)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_stream_goes_on_with_another_limit(
    monkeypatch: pytest.MonkeyPatch, restored: list[int], parts: int
) -> None:
    message = stopped_after(monkeypatch, parts, scenario(TEXT, "engine.timeout=50 s"))
    assert message == "stopped by a limit; the same command goes on from what is kept"
    so.stream(scenario(TEXT, "engine.timeout=90 s"))
    assert restored == [40] * parts


def test_a_stream_with_another_trace_begins_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, restored: list[int]
) -> None:
    file, trace = tmp_path / "stream.yaml", tmp_path / "requests.csv"
    file.write_text(TEXT[: TEXT.index("  num_prompts")] + "  trace: {file: requests.csv}\n")
    trace.write_text("arrival,prompt,output\n0,600,40\n1,600,40\n")
    stopped_after(monkeypatch, 1, file)
    trace.write_text("arrival,prompt,output\n0,600,40\n1,600,90\n")
    assert so.stream(file).measures[0].served.output.tolist() == [40, 90]
    assert not restored


def test_streams_do_not_remove_parts_of_others() -> None:
    exact, one, other = (
        StreamSimulation(scenario(), exact=exact).checkpoints for exact in (True, False, False)
    )
    for number, checkpoints in enumerate((exact, one, other)):
        checkpoints._saved = -saved_steps.INTERVAL
        checkpoints.note("part", number)
    one.clear()
    assert (exact.load("part"), other.load("part")) == (0, 2)
    other.clear()
    assert (exact.load("part"), other.load("part")) == (0, None)
    assert not other._folder.exists()


def test_a_part_is_kept_as_it_was_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_steps, "INTERVAL", 0.0)
    for number in range(3):
        saved_steps.StreamCheckpoints("key").note("part", number)
        time.sleep(0.01)
    again = saved_steps.StreamCheckpoints("key")
    assert again.load("part") == 2
    assert len(list(again._folder.glob("*/*"))) == 1


def test_a_part_of_another_stream_is_not_taken() -> None:
    one, other = (StreamSimulation(scenario(TEXT, f"stream.seed={seed}")).checkpoints for seed in (0, 1))
    assert one._folder != other._folder
