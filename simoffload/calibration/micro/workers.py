"""Processes that measure: started when they are first needed, and kept for all rounds."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from simoffload.calibration.deepspeed.launch import thread_environment
from simoffload.calibration.micro.plan import SkippedError
from simoffload.calibration.processes import Ranks

__all__ = ["WORKER", "Workers"]

WORKER = "simoffload.calibration.micro.worker"
"""The module that runs in the processes."""
_START = 180.0
"""[s] for the imports of the processes and their first meeting."""
_SLACK = 60.0
"""[s] that a section may take beyond twice what it was told, before its processes are ended: it looks at the
time between two models or sizes only."""
_PERIOD = 0.05
"""[s] between two looks for an answer."""


class Workers:
    """Groups of processes by what they may import and by how many they are."""

    def __init__(self, folder: Path, job: Mapping[str, Any]) -> None:
        self._folder, self._job = folder, dict(job)
        self._groups: dict[tuple[str, int], _Group] = {}
        self._started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for group in self._groups.values():
            group.end()

    def start(self, process: str, ranks: int) -> None:
        """Begin to start a group unless it runs."""
        if (process, ranks) not in self._groups:
            folder = self._folder / f"{self._started:03d}-{process}-{ranks}"
            self._started += 1
            self._groups[process, ranks] = _Group(folder, self._job, process, ranks)

    def ask(self, process: str, ranks: int, asked: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """What a group finds when it does what is asked, for which it has so many ``seconds`` [s].

        Raises SkippedError where it cannot be done or failed; after a failure the group is started anew when
        it is needed next.
        """
        self.start(process, ranks)
        group = self._groups[process, ranks]
        answer = group.ask({**asked, "seconds": seconds})
        if "found" in answer:
            found: dict[str, Any] = answer["found"]
            return found
        if "skipped" not in answer:
            self._groups.pop((process, ranks)).end()
        raise SkippedError(str(answer.get("skipped") or answer["failed"]))


class _Group:
    """Processes that share a folder, in which they find what is asked and write what they found."""

    def __init__(self, folder: Path, job: Mapping[str, Any], process: str, ranks: int) -> None:
        folder.mkdir()
        self._folder, self._log, self._asked = folder, folder / "log.txt", 0
        self._started = time.monotonic()
        path = folder / "job.json"
        path.write_text(json.dumps({**job, "deepspeed": process != "plain", "folder": str(folder)}))
        environment = thread_environment(ranks) if process != "plain" else {}
        self._ranks = Ranks(WORKER, [str(path)], ranks=ranks, log=self._log, environment=environment)

    def ask(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer: what was "found", why it was "skipped", or how it "failed"."""
        ready = self._folder / "ready"
        while not ready.is_file():
            if self._ranks.status is not None or time.monotonic() - self._started > _START:
                return {"failed": f"the processes could not be started: {self._last_line()}"}
            time.sleep(_PERIOD)
        name = f"{self._asked:04d}"
        self._asked += 1
        partial = self._folder / f"{name}.partial"
        partial.write_text(json.dumps(asked))
        partial.replace(self._folder / f"{name}.ask")
        limit = 2 * asked["seconds"] + _SLACK
        until = time.monotonic() + limit
        while time.monotonic() < until:
            running = self._ranks.status is None
            if (answer := self._answer(name)) is not None:
                return answer
            if not running:
                return {"failed": f"its process ended with status {self._ranks.status}: {self._last_line()}"}
            time.sleep(_PERIOD)
        return {"failed": f"stopped after {limit:.0f} s"}

    def _answer(self, name: str) -> dict[str, Any] | None:
        """What rank 0 answered, or any other that failed."""
        answers = sorted(self._folder.glob(f"{name}.answer-*"))
        answers = [path for path in answers if path.suffix != ".partial"]
        if not answers:
            return None
        answer: dict[str, Any] = json.loads(answers[-1].read_text(encoding="utf-8"))
        return answer

    def _last_line(self) -> str:
        """The last line that a process wrote, for a message."""
        lines: list[str] = []
        with suppress(OSError):
            text = self._log.read_text(encoding="utf-8", errors="replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
        told = [line for line in lines if "Error" in line and "torch.distributed.elastic" not in line]
        return (told or lines or ["it said nothing"])[-1][:300]

    def end(self) -> None:
        """End the processes."""
        self._ranks.end()
