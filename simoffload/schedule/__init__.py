"""What a strategy hands to the engine: operations per stream, in blocks that repeat."""

from simoffload.schedule.ir import (
    Block,
    Dependency,
    Device,
    Link,
    LinkUnit,
    Op,
    Peers,
    Program,
    Route,
    Schedule,
)

__all__ = ["Block", "Dependency", "Device", "Link", "LinkUnit", "Op", "Peers", "Program", "Route", "Schedule"]
