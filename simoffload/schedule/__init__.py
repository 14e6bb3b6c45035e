"""The interface between strategies and engine: operations per stream, in blocks that repeat."""

from simoffload.schedule.bounds import (
    Contention,
    alone_rate,
    find_contention,
    link_loads,
    link_time,
    stream_times,
    transfer_time,
)
from simoffload.schedule.builder import Hops, ScheduleBuilder, grouped
from simoffload.schedule.causes import Cause, CauseKind, HostMemory, Purpose
from simoffload.schedule.checks import check_schedule
from simoffload.schedule.ir import (
    Block,
    CompiledOp,
    CompiledSchedule,
    Dependency,
    Device,
    Link,
    LinkUnit,
    Need,
    Op,
    OpKind,
    Peers,
    Program,
    Route,
    Schedule,
)

__all__ = [
    "Block",
    "Cause",
    "CauseKind",
    "CompiledOp",
    "CompiledSchedule",
    "Contention",
    "Dependency",
    "Device",
    "Hops",
    "HostMemory",
    "Link",
    "LinkUnit",
    "Need",
    "Op",
    "OpKind",
    "Peers",
    "Program",
    "Purpose",
    "Route",
    "Schedule",
    "ScheduleBuilder",
    "alone_rate",
    "check_schedule",
    "find_contention",
    "grouped",
    "link_loads",
    "link_time",
    "stream_times",
    "transfer_time",
]
