"""A kind of tier: an object store, from which a client fetches parts of objects over many connections.

``python object_store.py run object_store.yaml`` loads blocks of a key-value cache from it.
"""

from pathlib import Path
from typing import Literal

from simoffload.cli import main
from simoffload.hardware.library import Entry, Library
from simoffload.hardware.profiles import Profile
from simoffload.hardware.quantities import Count, Sourced
from simoffload.hardware.storage import Service
from simoffload.hardware.targets import Link, Target, register_tier
from simoffload.hardware.tiers import TierKind
from simoffload.units import BytesPerSecond, PositiveBytes, Seconds


class ObjectStore(Profile):
    """An object store, with the settings of its clients."""

    kind: Literal["objects"]
    capacity: Sourced[PositiveBytes]
    read: Sourced[BytesPerSecond]
    """Rate for all clients together."""
    write: Sourced[BytesPerSecond]
    first_byte: Sourced[Seconds]
    """Time from a request to its first byte."""
    per_connection: Sourced[BytesPerSecond]
    """Rate of one connection after that."""
    connections: Sourced[Count]
    """Connections of a client, each of which fetches one part at a time."""
    part: Sourced[PositiveBytes]
    """Size of the parts of large objects."""


def target(_library: Library, entry: Entry, _link: Link) -> Target:
    """Return what the topology has to know of it; a client has parts in flight (Little's law)."""
    one = entry.profile
    assert isinstance(one, ObjectStore)
    part, stream, wait = one.part.value, one.per_connection.value, one.first_byte.value
    client = int(one.connections.value * part / (wait + part / stream))
    read, write = (
        Service(rate, wait, stream, transfer=min(rate, client)) for rate in (one.read.value, one.write.value)
    )
    capacity = one.capacity.value
    return Target(one.id, "objects", capacity, read, write, client_rate=client, has_rdma=False)


OBJECTS = TierKind("objects", "objects", rates=("read", "write", "per_connection"), unseen="an object store")
register_tier(OBJECTS, ObjectStore, target, Path(__file__).parent)

if __name__ == "__main__":
    raise SystemExit(main())
