"""The page as an application, with workers of its own; skipped without the extra ``web``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("dash")
pytest.importorskip("waitress")

from dash import Dash

from simoffload.extensions.web.jobs import Jobs, Kind
from simoffload.extensions.web.server import application
from simoffload.limits import Limits

PAGE = "p" * 32


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    """Few workers, which all tests share."""
    found = Jobs({name: Kind(1, Limits(60.0)) for name in ("quick", "check", "slow", "stream")})
    yield found
    found.close()


@pytest.fixture(scope="session")
def app(jobs: Jobs) -> Dash:
    return application(jobs)


Post = Callable[..., Any]


@pytest.fixture
def post(app: Dash) -> Post:
    """Do something on the page once, as a browser does; returns the properties that change of the part with
    the property ``of``."""
    client = app.server.test_client()

    def posted(
        of: str,
        trigger: str,
        value: Any,
        address: str = "",
        *,
        names: tuple[str, ...] = (),
        asks: tuple[str, ...] = (),
        fixes: tuple[str, ...] = (),
        **more: Any,
    ) -> Any:
        output = next(key for key in app.callback_map if of in key)
        given = {"url.hash": address, "me.data": PAGE, "shape.data": [], **more, trigger: value}
        there = {"set": names, "note": names, "ask": asks, "fix": fixes}
        body = {
            "output": output,
            "outputs": _filled(app.callback_map[output]["output"], there, {}),
            "inputs": _filled(app.callback_map[output]["inputs"], there, given),
            "state": _filled(app.callback_map[output]["state"], there, given),
            "changedPropIds": [trigger],
        }
        answer = client.post(
            "/_dash-update-component",
            data=json.dumps(body),
            content_type="application/json",
            base_url=LOCAL,
        )
        return answer.get_json()["response"] if answer.status_code == 200 else {}

    return posted


@pytest.fixture
def update(post: Post) -> Post:
    """Do something that changes the answer, and wait for the new one."""

    def updated(trigger: str, value: Any, address: str = "", **more: Any) -> Any:
        for _ in range(100):
            found = post("url.hash", trigger, value, address, **more)
            if not found.get("progress", {}).get("children"):
                break
        return found

    return updated


LOCAL = "http://127.0.0.1:8050"


def _filled(parts: Any, there: dict[str, tuple[str, ...]], given: dict[str, Any]) -> list[Any]:
    """Return parts of the page with their values; a pattern means every one of its kind that is there."""
    found: list[Any] = []
    for part in parts:
        name, key = (part["id"], part["property"]) if isinstance(part, dict) else str(part).rsplit(".", 1)
        if name.startswith("{"):
            (kind,) = json.loads(name)
            own: list[Any] = [{kind: one} for one in there.get(kind, ())]
            found.append([_valued(one, key, given) for one in own])
        else:
            found.append(_valued(name, key, given))
    return found


def _valued(name: Any, key: str, given: dict[str, Any]) -> dict[str, Any]:
    text = name if isinstance(name, str) else json.dumps(name, separators=(",", ":"))
    return {"id": name, "property": key, "value": given.get(f"{text}.{key}")}
