"""Measure 50 changes of sliders on the page in headless Chromium, next to those of another checkout.

python benchmarks/bench_page.py [OTHER_CHECKOUT]
python benchmarks/bench_page.py --users 5

Each change is measured from the slider to the frame that shows its answer [ms], with the CPU time of server
and workers and of the browser's page in the same time. Both checkouts take turns, slider by slider. With
``--users`` so many pages of one server, each with a browser of its own, change a slider at the same time.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SCENARIOS = {
    "a model on a desktop": "llama-3.3-70b",
    "storage of a vendor": "storage/llama-3.1-405b",
    "24 trillion parameters": "ddn/bloom-mod-2",
    "a training step": "training/bloom-7b1",
}
CHANGES = 13
"""Changes of each scenario."""
_MOVE = """new Promise((done) => {
  const sliders = document.querySelectorAll("#form input[type=range]");
  const one = sliders[%d %% sliders.length], before = location.hash, began = performance.now();
  const at = Number(one.value), to = at < Number(one.max) ? at + 1 : at - 1;
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(one, String(to));
  one.dispatchEvent(new Event("input", { bubbles: true }));
  one.dispatchEvent(new Event("change", { bubbles: true }));
  const look = () => {
    const waits = document.getElementById("progress").textContent;
    if (location.hash !== before && !waits || performance.now() - began > 60000) {
      requestAnimationFrame(() => done(performance.now() - began));
    } else {
      setTimeout(look, 4);
    }
  };
  look();
})"""
_READY = (
    "document.querySelectorAll('#form input[type=range]').length && document.querySelector('#charts svg')"
)


_CODES = {"Enter": 13, "ArrowDown": 40, "-": 189}
"""Virtual codes of keys that are no letters or digits."""


class Chromium:
    """A page of headless Chromium, driven by the protocol of its developer tools over a pipe."""

    def __init__(self, folder: str) -> None:
        binary = shutil.which("chromium") or shutil.which("chromium-browser") or sys.exit("no Chromium")
        theirs, self._out = os.pipe()
        self._in, ours = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        command = [binary, *options, f"--user-data-dir={folder}", "about:blank"]
        # Chromium reads from 3 and writes to 4.
        script = f'exec 3<&{theirs} 4>&{ours}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "-", *command], pass_fds=(theirs, ours), stderr=subprocess.DEVNULL
        )
        os.close(theirs)
        os.close(ours)
        self._number, self._rest = 0, b""
        self._session = ""
        page = next(one for one in self.do("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.do("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        self.do("Performance.enable", timeDomain="threadTicks")

    def do(self, method: str, **parameters: Any) -> Any:
        """Return the answer to a command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                self._rest += os.read(self._in, 1 << 20)
            text, _, self._rest = self._rest.partition(b"\0")
            found = json.loads(text)
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(found["error"])
                return found["result"]

    def value(self, expression: str) -> Any:
        """Return the value of an expression, of a promise once it is there."""
        found = self.do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return found["result"].get("value")

    def open(self, address: str, ready: str) -> None:
        """Show a page and wait until an expression is true."""
        self.do("Page.navigate", url="about:blank")
        self.do("Page.navigate", url=address)
        end = time.monotonic() + 120
        while not self.value(f"Boolean({ready})"):
            if time.monotonic() > end:
                raise TimeoutError(address)
            time.sleep(0.1)

    def press(self, *keys: str) -> None:
        """Press keys, by their characters or names, one after the other."""
        for key in keys:
            text = {"text": key if len(key) == 1 else "\r"} if len(key) == 1 or key == "Enter" else {}
            code = _CODES.get(key, ord(key[0].upper()))
            for kind, more in (("keyDown", text), ("keyUp", {})):
                self.do("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def cpu_ms(self) -> float:
        """Return the CPU time of the page's main thread."""
        found = {one["name"]: one["value"] for one in self.do("Performance.getMetrics")["metrics"]}
        return 1e3 * float(found["TaskDuration"])

    def close(self) -> None:
        """End the browser."""
        self.do("Browser.close")
        self._process.wait(10)


@contextmanager
def serving(checkout: Path) -> Iterator[tuple[int, str]]:
    """Serve the page of a checkout; yield its process and its address."""
    command = [sys.executable, "-m", "simoffload", "serve", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONUNBUFFERED": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=environment, cwd="/", **pipes) as process:
        try:
            assert process.stdout is not None
            yield process.pid, next(line for line in process.stdout if "http" in line).split()[1]
        finally:
            process.terminate()


def tree_ms(root: int) -> float:
    """Return the CPU time of a process and of all below it [ms], dead ones included."""
    parents, times = dict[int, int](), dict[int, int]()
    for one in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = one.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(one.parent.name)
        parents[pid], times[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    found, new = set[int](), {root}
    while new:
        found |= new
        new = {pid for pid, parent in parents.items() if parent in new}
    return 1e3 * sum(times.get(pid, 0) for pid in found) / os.sysconf("SC_CLK_TCK")


def together(users: int) -> None:
    """Measure changes that several people make at the same moment, each of a scenario of their own."""
    names = list(islice(cycle(SCENARIOS.values()), users))
    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in names]
        _, address = stack.enter_context(serving(HERE))
        pages = [Chromium(folder) for folder in folders]
        for page in pages:
            stack.callback(page.close)
        people = stack.enter_context(ThreadPoolExecutor(users))
        list(people.map(lambda page, name: page.open(f"{address}#{_state(name)}", _READY), pages, names))
        rounds = []
        for number in range(CHANGES):
            time.sleep(1)
            rounds.append(
                [float(shown) for shown in people.map(Chromium.value, pages, [_MOVE % number] * users)]
            )
        load = os.getloadavg()[0]
        print(f"{users} users at once, {CHANGES} changes each, load {load:.1f}: median (most) [ms]")
        everything = [shown for one in rounds for shown in one]
        for name, own in (*zip(names, zip(*rounds, strict=True), strict=True), ("all", everything)):
            print(f"{name:24} {statistics.median(own):5.0f} ({max(own):5.0f})")


def main() -> None:
    if sys.argv[1:2] == ["--users"]:
        together(int(sys.argv[2]))
        return
    checkouts = [HERE, *(Path(one).resolve() for one in sys.argv[1:2])]
    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in checkouts]
        servers = [stack.enter_context(serving(one)) for one in checkouts]
        pages = [Chromium(folder) for folder in folders]
        for page in pages:
            stack.callback(page.close)
        print("medians (most) of a change [ms]   shown         server        browser")
        everything: list[list[float]] = [[] for _ in checkouts]
        for title, name in SCENARIOS.items():
            rows: list[list[tuple[float, float, float]]] = [[] for _ in checkouts]
            for (_, address), page in zip(servers, pages, strict=True):
                page.open(f"{address}#{_state(name)}", _READY)
            time.sleep(1)
            for number in range(CHANGES):
                for at in islice(cycle(range(len(pages))), number, number + len(pages)):
                    server, drawn = tree_ms(servers[at][0]), pages[at].cpu_ms()
                    shown = float(pages[at].value(_MOVE % number))
                    spent = tree_ms(servers[at][0]) - server, pages[at].cpu_ms() - drawn
                    rows[at].append((shown, *spent))
                    everything[at].append(shown)
            for checkout, found in zip(checkouts, rows, strict=True):
                texts = [
                    f"{statistics.median(one):5.0f} ({max(one):5.0f})" for one in zip(*found, strict=True)
                ]
                print(f"{title[:24]:24} {checkout.name[-8:]:8} {' '.join(texts)}")
        for checkout, times in zip(checkouts, everything, strict=True):
            print(f"all {len(times)} of {checkout.name}: {statistics.median(times):.0f} ({max(times):.0f})")


def _state(name: str) -> str:
    from simoffload.extensions.web.state import State, Variant

    return State((Variant(name),)).text


if __name__ == "__main__":
    main()
