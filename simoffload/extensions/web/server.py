"""The server of the page, for one or several people at once."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from simoffload.errors import InputError
from simoffload.extensions.web.jobs import Jobs
from simoffload.extensions.web.state import State
from simoffload.limits import Limits

try:
    import waitress
    from dash import Dash
    from flask import Flask, Request, Response, abort, redirect, request
    from waitress.channel import HTTPChannel
    from werkzeug.exceptions import HTTPException

    from simoffload.extensions.web.page import add_callbacks, index, kinds, layout
except ImportError as missing:
    text = f"the page needs {missing.name}; install it with: pip install 'simoffload[web]'"
    raise InputError.at("", text, path="simoffload serve") from None

# -- the guard of the page -------------------------------------------------------------------------
# Who may ask for it, from where, and how much at once.


LARGEST_REQUEST = 4 << 20
"""[B] of a request: a file of a megabyte in base64, with the rest of the page twice."""
_COOKIE = "simoffload"
_WRONG = "the address of this page needs the token that simoffload serve printed: ?token=…"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Return whether a name or address means this machine and no other can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def protect(server: Flask, *, scripts: list[str], token: str) -> None:
    """Refuse requests from other sites, too large ones and, where there is a ``token``, those without it.

    ``scripts`` are the hashes of the page's own inline scripts; no other script runs.
    """
    server.config["MAX_CONTENT_LENGTH"] = LARGEST_REQUEST
    server.config["MAX_FORM_MEMORY_SIZE"] = LARGEST_REQUEST
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' {' '.join(scripts)}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "font-src 'self' data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )

    def check() -> Response | None:
        _check_origin(request, token)
        if not token or hmac.compare_digest(request.cookies.get(_COOKIE, "").encode(), token.encode()):
            return None
        if not hmac.compare_digest(request.args.get("token", "").encode(), token.encode()):
            abort(403, _WRONG)
        answer: Response = redirect("/", code=303)  # the fragment, which holds the state, stays
        answer.set_cookie(_COOKIE, token, httponly=True, samesite="Lax")
        return answer

    def guarded(response: Response) -> Response:
        response.headers.update(_HEADERS)
        response.headers["Content-Security-Policy"] = policy
        return response

    server.before_request(check)
    server.after_request(guarded)
    server.register_error_handler(Exception, _refusal)


def _refusal(error: Exception) -> tuple[str, int, dict[str, str]]:
    """Return one line about a request that cannot be answered."""
    text, code = "this page has no such request", 400
    if os.environ.get("SIMOFFLOAD_DEBUG") == "1" and not isinstance(error, HTTPException):
        sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(error, HTTPException):
        text, code = str(error.description), error.code or 500
    return f"{text}\n", code, {"Content-Type": "text/plain; charset=utf-8"}


def _check_origin(one: Request, token: str) -> None:
    """Refuse a request under a name of another machine, or from a page of another site."""
    host = urlsplit(f"//{one.host}").hostname or ""
    if not token and not is_loopback(host):
        abort(403, "this page is for this machine alone; open it as http://127.0.0.1")
    origin = one.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != one.host:
        abort(403, "another site asked for this page")
    if one.headers.get("Sec-Fetch-Site", "none") == "cross-site" and one.method != "GET":
        abort(403, "another site asked for this page")


# -- the server of the page, for one or several people at once -------------------------------------


_THREADS = 24
"""Requests that are answered at once; most of them wait for a worker."""
_MOST_OPEN, _OF_ADDRESS = 160, 48
"""Connections in all, and of one address, of which a browser has six: our choice. Those beyond take the
places of the ones that have not asked for longest."""
_ASKING, _IDLE = 10.0, 60.0
"""Time [s] that a connection has for a whole header, and for all else: our choice."""


class _Connection(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A _Connection ends where it takes too long to ask, and takes the place of others that do."""

    def __init__(self, server: Any, *given: Any, **more: Any) -> None:
        super().__init__(server, *given, **more)
        self.since, self.limit = self.creation_time, _ASKING
        others = [one for one in server.active_channels.values() if one is not self]
        near = [one for one in others if one.addr[0] == self.addr[0]]
        for found, most in ((near, _OF_ADDRESS), (others, _MOST_OPEN)):
            waiting = sorted((one for one in found if not one.requests), key=lambda one: one.since)
            for one in waiting[: max(0, len(found) + 1 - most)]:
                one.will_close = True

    def received(self, data: bytes) -> bool:
        """Take what was sent, and count the time from the first byte of each request."""
        is_new = self.request is None
        found = bool(super().received(data))
        if is_new:
            self.since = time.time()
        asks = self.request is not None and not self.request.headers_finished
        self.limit = _ASKING if asks else _IDLE
        return found

    def service(self) -> None:
        """Answer a request, and count the time from the answer."""
        super().service()
        self.since = time.time()

    def end_if_late(self, now: float) -> None:
        """Close it if a request, the next one, or the reading of an answer takes too long."""
        if not self.requests and now - self.since > self.limit:
            self.will_close = True


def application(jobs: Jobs, *, token: str = "") -> Dash:
    """Return the page as an application, whose attribute ``server`` is one of WSGI."""
    app = Dash(
        "simoffload.extensions.web",
        title="simoffload",
        update_title="",
        compress=False,
        serve_locally=True,
        suppress_callback_exceptions=True,
    )
    app.index_string = index(app.index_string)
    app.layout = layout
    add_callbacks(app, jobs)
    protect(app.server, scripts=list(app.csp_hashes()), token=token)
    return app


def serve(
    host: str,
    port: int,
    *,
    limits: Limits,
    start: State | None,
    prepare: Callable[[], object] | None = None,
    say: Callable[[str], None],
) -> None:
    """Serve the page until the process is interrupted; ``say`` is told its address. Each question has the
    ``limits``, and each worker calls ``prepare`` first.

    Where other machines can reach it, it asks for a token. Raises InputError for an address that cannot be
    used.
    """
    token = "" if is_loopback(host) else secrets.token_urlsafe(16)
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    if threading.current_thread() is threading.main_thread() and not ignored:
        signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))  # a terminal that is closed ends it
    with _listening(host, port) as listening:
        jobs = Jobs(kinds(os.cpu_count() or 2, limits), prepare)
        try:
            app = application(jobs, token=token)
            logging.getLogger("waitress").setLevel(logging.ERROR)
            server = listener(app.server, listening)
            name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
            query, fragment = f"?token={token}" if token else "", f"#{start.text}" if start else ""
            number = listening.getsockname()[1]
            say(f"open http://{name}:{number}/{query}{fragment} (Ctrl-C ends it)")
            server.run()
        finally:
            jobs.close()


def listener(application: Flask, listening: socket.socket) -> Any:
    """Return a server that answers who connects to a socket, once it runs."""
    server = waitress.create_server(
        application,
        sockets=[listening],
        threads=_THREADS,
        ident=None,
        max_request_body_size=LARGEST_REQUEST,
        connection_limit=2 * _MOST_OPEN,
        cleanup_interval=1,
    )

    def close_late(now: float) -> None:
        for one in list(server.active_channels.values()):
            one.end_if_late(now)

    server.channel_class, server.maintenance = _Connection, close_late
    return server


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else "this machine has no such address"
        text = f"{host}:{port} cannot be used: {reason}; choose another with --port or --host"
        raise InputError.at("", text, path="simoffload serve") from None
