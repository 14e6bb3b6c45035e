"""The workers of a Dask cluster: https://distributed.dask.org.

A task carries all that it needs. Data that is scattered to workers would be lost with them, and a task that
was sent does not ask this machine for anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from simoffload.errors import InputError, Problem, shortened
from simoffload.planning.sweep.pool import Pool

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["LOCAL", "cluster_workers"]

LOCAL = "local"
"""In place of an address: a cluster within this process."""
_PATIENCE = 20  # [s] for the scheduler to answer, and again for a first worker
_AHEAD = 2
"""Tasks sent for each thread of the cluster."""


@contextlib.contextmanager
def cluster_workers(address: str, *, count: int) -> Iterator[Pool]:
    """Yield the pool of the workers at ``address``; ``count`` is how many ``local`` has.

    Raises InputError where there is no cluster, or Dask is not installed.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        text = "needs Dask distributed; install it with: pip install 'simoffload[cluster]'"
        raise _refusal(text) from None
    with contextlib.ExitStack() as stack:
        if address == LOCAL:
            cluster = LocalCluster(
                n_workers=count, threads_per_worker=1, processes=False, dashboard_address=None
            )
            client = stack.enter_context(Client(stack.enter_context(cluster)))
        else:
            client = stack.enter_context(_connected(address))
        submit = client.get_executor(pure=False).submit
        yield Pool("the cluster", submit, lambda: _room(client), _exit_reason)


def _room(client: Client) -> int:
    """Tasks that keep the cluster busy, and no busier."""
    threads: int = sum(client.nthreads().values())
    return _AHEAD * max(1, threads)


def _exit_reason(error: Exception) -> str | None:
    from distributed import KilledWorker

    return "lost by the cluster" if isinstance(error, KilledWorker) else None


def _connected(address: str) -> Client:
    from distributed import Client

    try:
        client = Client(address, timeout=_PATIENCE)
    except (OSError, ValueError, TypeError) as error:
        raise _refusal(f"no scheduler answers at {shortened(address)} ({error})") from None
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except TimeoutError:
        client.close()
        text = f"the scheduler at {address} has no workers; start some with: dask worker {address}"
        raise _refusal(text) from None
    return client


def _refusal(message: str) -> InputError:
    return InputError((Problem("--cluster", None, None, "", message),))
