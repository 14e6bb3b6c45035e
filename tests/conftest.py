"""What holds for every test: the same examples of hypothesis and the same day everywhere, and no network."""

from __future__ import annotations

import datetime
import gc
import ipaddress
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.examples import EXPLORES, FEW, some

# A shared machine may be slow, so no deadline; HYPOTHESIS_PROFILE=explore looks for new examples.
settings.register_profile("repeatable", deadline=None, max_examples=some(FEW), derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=some(FEW))
settings.load_profile("explore" if EXPLORES else "repeatable")

# As in the program itself: simulations make many objects and no garbage that could not wait.
gc.set_threshold(300_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with slow tests: of several processes none has to wait for such a one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay until the end, out of every collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep steps of streams in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top of the checkout."""
    return Path(__file__).parents[1]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt this process and those that it starts, as in a terminal.

    A shell starts what runs in the background with the signal ignored, and so do some CI systems.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _is_local(address: object) -> bool:
    if not isinstance(address, tuple):
        return True  # a Unix socket
    host = str(address[0])
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in {"", "localhost"}


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Refuse connections to other machines (notebook kernels talk over the loopback)."""
    connect = socket.socket.connect

    def connect_locally(self: socket.socket, address: object) -> None:
        if not _is_local(address):
            raise AssertionError(f"a test tried to reach {address!r}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_locally)
        yield


@pytest.fixture(scope="session", autouse=True)
def _same_day() -> Iterator[None]:
    """Prices are old from a year on: what a test expects shall not change with the calendar."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simoffload.planning.costs._today", lambda: datetime.date(2026, 11, 21))
        yield
