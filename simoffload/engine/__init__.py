"""The engine, which replays a schedule on shared links: clock, fluid network and executor."""

from simoffload.engine.executor import execute
from simoffload.engine.out_of_step import Meetings, meetings, ranks_out_of_step

__all__ = ["Meetings", "execute", "meetings", "ranks_out_of_step"]
