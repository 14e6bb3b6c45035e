"""Replays a schedule on shared links: the clock, the fluid network and the executor."""

from simoffload.engine.executor import execute

__all__ = ["execute"]
