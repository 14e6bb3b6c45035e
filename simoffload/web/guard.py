"""The guard of the page: who may ask for it, from where, and how much at once."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from flask import Flask, Request, Response, abort, redirect, request
from werkzeug.exceptions import HTTPException

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
