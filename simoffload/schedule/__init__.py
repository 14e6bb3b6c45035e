"""The interface between strategies and engine: operations per stream, in blocks that repeat."""

from simoffload.schedule.cache_traffic import cache_route, cache_tier, way_of, with_speeds
from simoffload.schedule.bounds import (
    Contention,
    find_contention,
    link_loads,
    link_time,
    stream_times,
    transfer_time,
)
from simoffload.schedule.builder import Hops, ScheduleBuilder
from simoffload.schedule.checks import check_schedule
from simoffload.schedule.ir import (
    Block,
    CompiledOp,
    Dependency,
    Device,
    Link,
    LinkUnit,
    Need,
    Op,
    Peers,
    Program,
    Route,
    Schedule,
    compile_streams,
    steps_of,
)

__all__ = [
    "Block",
    "CompiledOp",
    "Contention",
    "Dependency",
    "Device",
    "Hops",
    "Link",
    "LinkUnit",
    "Need",
    "Op",
    "Peers",
    "Program",
    "Route",
    "Schedule",
    "ScheduleBuilder",
    "cache_route",
    "cache_tier",
    "check_schedule",
    "compile_streams",
    "find_contention",
    "link_loads",
    "link_time",
    "steps_of",
    "stream_times",
    "transfer_time",
    "way_of",
    "with_speeds",
]
