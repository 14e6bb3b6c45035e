"""Traffic of the key-value cache: the names of its routes, and schedules in which it takes another time."""

from __future__ import annotations

import re

from simoffload.schedule.ir import Block, Op, Schedule

_NAME = re.compile(r"(.*) \(key-value cache on (.+)\)", re.DOTALL)


def cache_route(way: str, tier: str) -> str:
    """Return the name of a route over which keys and values of a cache on a tier move, such as "GPU to host
    (key-value cache on dram)"; it is also the cause of their time."""
    return f"{way} (key-value cache on {tier})" if tier else way


def way_of(name: str) -> str:
    """Return the name of a route or a cause without the cache that it moves: "GPU to host"."""
    found = _NAME.fullmatch(name)
    return name if found is None else found[1]


def cache_tier(name: str) -> str | None:
    """Return the tier of the cache that a route moves, or whose time a cause is; None for everything else."""
    found = _NAME.fullmatch(name)
    return None if found is None else found[2]


def with_speeds(schedule: Schedule, *, cache: float = 1.0, others: float = 1.0) -> Schedule:
    """Return a schedule in which transfers of the cache, and all other operations, are some times as fast.

    A transfer that is ``cache`` times as fast has that part of its bytes and of its latency, so that every
    link and CPU on its way is as fast for it, while it shares them with others.
    """
    moves = [cache_tier(route.name) is not None for route in schedule.routes]

    def scaled(op: Op) -> Op:
        speed = cache if op.route >= 0 and moves[op.route] else others
        if speed == 1.0:
            return op
        size = max(1, round(op.size / speed)) if op.size else 0
        return op._replace(fixed=round(op.fixed / speed), size=size)

    blocks = tuple(Block(one.name, tuple(map(scaled, one.ops)), one.repeat) for one in schedule.blocks)
    return schedule._replace(blocks=blocks)
