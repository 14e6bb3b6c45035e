"""Who may ask for the page, and what a hostile one can do."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dash import Dash

from simoffload.errors import Problem
from simoffload.extensions.web import server as page_server
from simoffload.extensions.web.jobs import Jobs, _Answers
from simoffload.extensions.web.scenarios import problem_texts
from simoffload.extensions.web.server import LARGEST_REQUEST, application, is_loopback, listener
from simoffload.shipped import shipped_folder
from tests.web.conftest import LOCAL, Post

UPDATE = "/_dash-update-component"


def test_only_this_machine_may_ask(app: Dash) -> None:
    client = app.server.test_client()
    assert client.get("/", base_url=LOCAL).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.1:8050"):
        answer = client.get("/", base_url=f"http://{host}")
        assert (answer.status_code, answer.text.count("\n")) == (403, 1)
    assert [is_loopback(one) for one in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "x")] == [
        *(True, True, True),
        *(False, False),
    ]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost"])
def test_no_other_site_may_ask(app: Dash, origin: str) -> None:
    client = app.server.test_client()
    answer = client.post(UPDATE, json={}, base_url=LOCAL, headers={"Origin": origin})
    assert answer.status_code == 403


def test_no_script_comes_from_data(app: Dash) -> None:
    policy = app.server.test_client().get("/", base_url=LOCAL).headers["Content-Security-Policy"]
    script = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert "unsafe" not in script
    assert "'sha256-" in script
    assert "frame-ancestors 'none'" in policy


def test_other_machines_need_the_token(jobs: Jobs) -> None:
    client = application(jobs, token="secret").server.test_client()
    there = "http://10.0.0.1:8050"
    assert client.get("/", base_url=there).status_code == 403
    assert client.get("/?token=wrong", base_url=there).status_code == 403
    assert client.post(UPDATE, json={}, base_url=there).status_code == 403
    answer = client.get("/?token=secret", base_url=there)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    assert "HttpOnly" in answer.headers["Set-Cookie"]
    assert client.get("/", base_url=there).status_code == 200


def test_a_huge_request_is_refused(app: Dash) -> None:
    client = app.server.test_client()
    answer = client.post(
        UPDATE, data=b"x" * (LARGEST_REQUEST + 1), content_type="application/json", base_url=LOCAL
    )
    assert answer.status_code == 413
    assert "Traceback" not in answer.text


def test_a_thousand_random_callbacks_leave_it_standing(app: Dash, update: Post) -> None:
    client, chance = app.server.test_client(), random.Random(36)
    outputs = list(app.callback_map)

    def anything(depth: int = 3) -> Any:
        kinds = [None, True, -1, 1e308, "", "../../etc/passwd", "\0\ud800", "{" * 99, "<script>", outputs[0]]
        if depth and chance.random() < 0.5:
            return [anything(depth - 1) for _ in range(chance.randrange(4))]
        if depth and chance.random() < 0.5:
            keys = ("id", "property", "value", "output", "set", "inputs", "namespace")
            return {chance.choice(keys): anything(depth - 1) for _ in range(3)}
        return chance.choice(kinds)

    for _ in range(1000):
        body: Any = {key: anything() for key in ("outputs", "inputs", "state", "changedPropIds")}
        body = body | {"output": chance.choice(outputs)} if chance.random() < 0.9 else anything()
        answer = client.post(UPDATE, data=json.dumps(body), content_type="application/json", base_url=LOCAL)
        assert answer.status_code in (200, 204, 400, 403, 404, 413, 415), answer.text
        assert "Traceback" not in answer.text
        assert "root:" not in answer.text
    assert update("url.hash", "")["sentence"]["children"].startswith("gpt-oss-120b")


# ---- many connections, and what is left --------------------------------------------------------


@pytest.fixture
def port(app: Dash) -> Iterator[int]:
    """The port of a server as the command starts it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = listener(app.server, listening)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        yield int(listening.getsockname()[1])
        server.trigger.pull_trigger(lambda: server.asyncore.close_all(server._map))
        thread.join(timeout=5)
        server.task_dispatcher.shutdown()


def asked(port: int) -> int:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    client.request("GET", "/")
    status = client.getresponse().status
    client.close()
    return status


def test_connections_that_never_ask_keep_nobody_out(port: int) -> None:
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(205)]
    for one in slow:
        one.send(b"G")
    began = time.monotonic()
    assert asked(port) == 200
    assert time.monotonic() - began < 2
    for one in slow:
        one.close()


def test_a_header_has_a_deadline(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not move it."""
    monkeypatch.setattr(page_server, "_ASKING", 1.0)
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.settimeout(0.2)
        for _ in range(50):
            try:
                slow.send(b"G")
                if slow.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:
                return
    pytest.fail("the connection is still open")


def test_answers_are_kept_up_to_a_number_of_bytes() -> None:
    answers = _Answers(100)
    for name in "abcd":
        answers.keep(name, b"x" * 40)
    assert [name for name in "abcd" if answers.get(name)] == ["c", "d"]
    answers.keep("large", b"x" * 1000)
    assert [name for name in ("c", "d", "large") if answers.get(name)] == ["large"], "who waits gets it"


def test_no_message_has_a_path_of_the_installation() -> None:
    folder = shipped_folder("scenarios")
    (text,) = problem_texts([Problem(str(folder / "x.yaml"), 1, 1, "model", "no such file")])
    assert text == "scenarios/x.yaml:1:1: model: no such file"


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGHUP, 130), (signal.SIGTERM, 143)]
)
def test_nothing_is_left_of_a_server_that_is_killed(number: int, status: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "simoffload", "serve", "--port", "0"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("nohup runs the tests, under which a hang-up ends nothing")
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline().startswith(b"open http://127.0.0.1:")
        assert list(tmp_path.iterdir())
        serving.send_signal(number)
    assert serving.returncode == status
    end = time.monotonic() + 60  # what makes workers may be on its way
    while list(tmp_path.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.1)
