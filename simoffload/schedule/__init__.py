"""What a strategy hands to the engine: operations per stream, in blocks that repeat."""

from simoffload.schedule.ir import Block, Dependency, Link, Op, Route, Schedule

__all__ = ["Block", "Dependency", "Link", "Op", "Route", "Schedule"]
