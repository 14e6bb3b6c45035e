"""The server of the page, for one or several people at once."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable

from simoffload.errors import InputError
from simoffload.limits import Limits

try:
    import waitress
    from dash import Dash
except ImportError as missing:
    text = f"the page needs {missing.name}; install it with: pip install 'simoffload[web]'"
    raise InputError.at("", text, path="simoffload serve") from None

from simoffload.web.guard import LARGEST_REQUEST, is_loopback, protect
from simoffload.web.jobs import Jobs
from simoffload.web.page import add_callbacks, index, kinds, layout
from simoffload.web.state import State

_THREADS = 24
"""Requests that are answered at once; most of them wait for a worker."""


def application(jobs: Jobs, *, token: str = "") -> Dash:
    """Return the page as an application, whose attribute ``server`` is one of WSGI."""
    app = Dash(
        "simoffload.web",
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


def serve(host: str, port: int, *, limits: Limits, start: State | None, say: Callable[[str], None]) -> None:
    """Serve the page until the process is interrupted; ``say`` is told its address. Each question has the
    ``limits``.

    Where other machines can reach it, it asks for a token. Raises InputError for an address that cannot be
    used.
    """
    token = "" if is_loopback(host) else secrets.token_urlsafe(16)
    with _listening(host, port) as listening:
        jobs = Jobs(kinds(os.cpu_count() or 2, limits))
        try:
            app = application(jobs, token=token)
            logging.getLogger("waitress.queue").setLevel(logging.ERROR)
            server = waitress.create_server(
                app.server,
                sockets=[listening],
                threads=_THREADS,
                ident=None,
                max_request_body_size=LARGEST_REQUEST,
                connection_limit=200,
                channel_timeout=60,
            )
            name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
            query, fragment = f"?token={token}" if token else "", f"#{start.text}" if start else ""
            number = listening.getsockname()[1]
            say(f"open http://{name}:{number}/{query}{fragment} (Ctrl-C ends it)")
            server.run()
        finally:
            jobs.close()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else "this machine has no such address"
        text = f"{host}:{port} cannot be used: {reason}; choose another with --port or --host"
        raise InputError.at("", text, path="simoffload serve") from None
