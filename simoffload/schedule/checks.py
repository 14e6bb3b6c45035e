"""Whether a schedule can be run, found out before the clock starts.

Dependencies count back from where they are written, so a schedule whose counts are not negative has no
cycle: this is all that has to be checked for it to reach its end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from simoffload.errors import SimulationError
from simoffload.schedule.ir import Block, Op, Route, Schedule

__all__ = ["check_schedule"]

_MOST_RANKS = 2**16 - 1
_MOST_REPEATS = 2**32 - 1
"""What the columns of a timeline can number."""

_FRAMES: deque[Schedule] = deque(maxlen=8)
"""What was sound the last few times, without blocks: the passes of a plan share their links and routes, and
looking at those of many ranks takes longer than at the operations."""


def check_schedule(schedule: Schedule) -> None:
    """Return if ``schedule`` can be run; otherwise raise SimulationError with its first problem."""
    if _all_sound(schedule) and any(
        one.links is schedule.links and one.routes is schedule.routes and _frame(one) == _frame(schedule)
        for one in _FRAMES
    ):
        return
    problem = next(_problems(schedule), None)
    if problem is not None:
        raise SimulationError(f"schedule {schedule.name!r} cannot be run: {problem}")
    _FRAMES.append(schedule._replace(blocks=()))


def _frame(schedule: Schedule) -> tuple[object, ...]:
    """What else is looked at beside blocks, links and routes; those are compared by identity."""
    return type(schedule.ranks), schedule.ranks, schedule.streams, schedule.distinct


def _problems(schedule: Schedule) -> Iterator[str]:
    yield from _check_count("ranks", schedule.ranks, least=1, most=_MOST_RANKS)
    for what, names in (("stream", schedule.streams), ("link", [link.name for link in schedule.links])):
        for name in (name for name, count in Counter(names).items() if count > 1):
            yield f"two {what}s are called {name!r}"
    for link in schedule.links:
        yield from _check_count(f"link {link.name!r}: capacity [B/s]", link.capacity, least=1)
        yield from _check_count(f"link {link.name!r}: scale", link.scale, least=1)
    for route in schedule.routes:
        for problem in _route_problems(schedule, route):
            yield f"route {route.name!r}: {problem}"
    if schedule.distinct and len(schedule.distinct) != schedule.ranks:
        yield f"it tells {len(schedule.distinct)} ranks apart; the schedule has {schedule.ranks}"
    for index, block in enumerate(schedule.blocks):
        yield from _block_problems(schedule, index, block)


def _check_count(what: str, value: object, *, least: int, most: int | None = None) -> Iterator[str]:
    # A float would stop the clock from counting exactly; a bool or a numpy integer would wrap or surprise.
    if type(value) is not int:
        yield f"{what} is {value!r} ({type(value).__name__}); it must be an int"
    elif value < least:
        yield f"{what} is {value}; it must be at least {least}"
    elif most is not None and value > most:
        yield f"{what} is {value}; it must be at most {most}"


def _check_index(what: str, value: object, count: int) -> Iterator[str]:
    if type(value) is not int or not 0 <= value < count:
        yield f"{what} {value!r} does not exist; there are {count}, numbered from 0"


def _route_problems(schedule: Schedule, route: Route) -> Iterator[str]:
    yield from _check_count("cap [B/s]", route.cap, least=1)
    yield from _check_count("weight", route.weight, least=1)
    if len(route.hops) != schedule.ranks:
        yield f"it has hops for {len(route.hops)} ranks; the schedule has {schedule.ranks}"
    most_by_link = [link.capacity for link in schedule.links]
    for rank, hops in enumerate(route.hops):
        if _are_sound(hops, most_by_link):
            continue
        crossed = set()
        for link, coefficient in hops:
            problem = next(_check_index(f"on rank {rank}, link", link, len(schedule.links)), None)
            if problem is not None:
                yield problem
                continue
            name = schedule.links[link].name
            # A larger coefficient would leave less than 1 B/s even for a transfer that is alone.
            most = schedule.links[link].capacity
            what = f"on rank {rank}, coefficient on {name!r}"
            yield from _check_count(what, coefficient, least=1, most=most)
            if link in crossed:
                yield f"on rank {rank}, it crosses {name!r} twice; add the coefficients instead"
            crossed.add(link)


def _are_sound(hops: tuple[tuple[int, int], ...], most: list[int]) -> bool:
    """Whether nothing is wrong with what one rank's transfer crosses, found out in a moment."""
    links = len(most)
    for link, coefficient in hops:
        if not (type(link) is type(coefficient) is int and 0 <= link < links):
            return False
        if not 1 <= coefficient <= most[link]:
            return False
    return len({link for link, _ in hops}) == len(hops)


def _block_problems(schedule: Schedule, index: int, block: Block) -> Iterator[str]:
    where = f"block {index} ({block.name!r})"
    yield from _check_count(f"{where}: repeat", block.repeat, least=1, most=_MOST_REPEATS)
    for position, op in enumerate(block.ops):
        if _is_sound(op, len(schedule.streams), len(schedule.routes)):
            continue
        for problem in _op_problems(schedule, op):
            yield f"{where}, operation {position} ({op.kind} {op.label!r}): {problem}"


def _all_sound(schedule: Schedule) -> bool:
    """Whether nothing is wrong with any block."""
    streams, routes = len(schedule.streams), len(schedule.routes)
    return all(
        type(block.repeat) is int
        and 1 <= block.repeat <= _MOST_REPEATS
        and all(_is_sound(op, streams, routes) for op in block.ops)
        for block in schedule.blocks
    )


def _is_sound(op: Op, streams: int, routes: int) -> bool:
    """Whether nothing is wrong with an operation, found out in a moment."""
    _, _, on, fixed, size, route, after, _ = op
    if not (type(on) is type(fixed) is type(size) is type(route) is int):
        return False
    if not (0 <= on < streams and fixed >= 0 and size >= 0 and -1 <= route < routes) or (route < 0 < size):
        return False
    for stream, back in after:
        if not (type(stream) is type(back) is int and 0 <= stream < streams and back >= 0):
            return False
    return True


def _op_problems(schedule: Schedule, op: Op) -> Iterator[str]:
    yield from _check_index("stream", op.stream, len(schedule.streams))
    yield from _check_count("fixed [ps]", op.fixed, least=0)
    yield from _check_count("size [B]", op.size, least=0)
    if op.route != -1:
        yield from _check_index("route", op.route, len(schedule.routes))
    elif op.size:
        yield f"it moves {op.size} B but has no route"
    for stream, back in op.after:
        yield from _check_index("it depends on stream", stream, len(schedule.streams))
        yield from _check_count("its dependency's count back", back, least=0)
