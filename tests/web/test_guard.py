"""Who may ask for the page, and what a hostile one can do."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from dash import Dash

from simoffload.web.jobs import Jobs
from simoffload.web.server import LARGEST_REQUEST, application, is_loopback
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
