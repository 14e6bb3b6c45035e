"""The interface between strategies and engine: operations per stream, in blocks that repeat."""

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
