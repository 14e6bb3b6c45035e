"""Validity of a schedule, checked before the clock starts.

Dependencies count back from the position at which they are written, so that a schedule whose counts are not
negative has no cycle, within a program or across programs. Nothing else is needed for it to reach its end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, get_args

from simoffload.errors import SimulationError
from simoffload.schedule.ir import Block, Link, Op, OpKind, Program, Route, Schedule

_KINDS = frozenset(get_args(OpKind))
_MOST_RANKS = 2**16
_MOST_REPEATS = 2**32 - 1
"""Largest numbers that the columns of a timeline can hold."""

_Pairs = frozenset[tuple[int, Program, Program]]
"""The pairs of programs of which the ranks of the first may wait for operations of the second, by index into
``Schedule.peers``."""

_FRAMES: deque[Schedule] = deque(maxlen=8)
"""The last valid schedules, without blocks: the passes of a plan share their links and routes, and checking
those of many ranks takes longer than checking the operations."""


def check_schedule(schedule: Schedule) -> None:
    """Return if ``schedule`` is valid; otherwise raise SimulationError with its first problem."""
    known = any(
        one.links is schedule.links and one.routes is schedule.routes and _frame(one) == _frame(schedule)
        for one in tuple(_FRAMES)  # another thread may add one meanwhile
    )
    if known and _all_sound(schedule):
        return
    problem = next(_problems(schedule), None)
    if problem is not None:
        raise SimulationError(f"schedule {schedule.name!r} cannot be run: {problem}")
    _FRAMES.append(schedule._replace(blocks=()))


def _frame(schedule: Schedule) -> tuple[object, ...]:
    """Return what is checked in addition to blocks, links and routes; those are compared by identity."""
    _, ranks, streams, _, _, _, *rest = schedule
    return type(ranks), ranks, streams, rest


def _problems(schedule: Schedule) -> Iterator[str]:
    yield from _check_count("ranks", schedule.ranks, least=1, most=_MOST_RANKS)
    yield from _program_problems(schedule)
    for what, names in (
        ("program", [program.name for program in schedule.programs]),
        ("stream", schedule.labels),
        ("link", [link.name for link in schedule.links]),
    ):
        for name in (name for name, count in Counter(names).items() if count > 1):
            yield f"two {what}s are called {name!r}"
    for link in schedule.links:
        yield from _check_count(f"link {link.name!r}: capacity [B/s]", link.capacity, least=1)
        yield from _check_count(f"link {link.name!r}: scale", link.scale, least=1)
    for route in schedule.routes:
        for problem in _route_problems(schedule, route):
            yield f"route {route.cause.name or route.cause.kind!r}: {problem}"
    if schedule.distinct and len(schedule.distinct) != schedule.ranks:
        yield f"its distinct has {len(schedule.distinct)} ranks; the schedule has {schedule.ranks}"
    for number in range(len(schedule.peers)):
        yield from _peers_problems(schedule, number)
    owners, pairs = schedule.owners, _pairs(schedule)
    seen: set[int] = set()
    for index, block in enumerate(schedule.blocks):
        where = f"block {index} ({block.name!r})"
        yield from _check_count(f"{where}: repeat", block.repeat, least=1, most=_MOST_REPEATS)
        if id(block.ops) not in seen:
            seen.add(id(block.ops))
            yield from _block_problems(schedule, where, block, owners, pairs)


def _program_problems(schedule: Schedule) -> Iterator[str]:
    if schedule.devices and len(schedule.devices) != len(schedule.streams):
        yield f"it has {len(schedule.devices)} devices for {len(schedule.streams)} streams"
    for stream, device in zip(schedule.streams, schedule.devices, strict=False):
        yield from _check_count(f"stream {stream!r}: number of its {device.kind}", device.number, least=0)
    for what, count in (("ranks", schedule.ranks), ("streams", len(schedule.streams))):
        free = 0
        for program in schedule.programs:
            own: range = getattr(program, what)
            if not own or own != range(free, own.stop):
                yield (
                    f"program {program.name!r}: its {what} are {own}; they must be those from {free} on, at "
                    "least one, as programs follow one another"
                )
            free = own.stop
        if schedule.programs and free != count:
            yield f"its programs have {free} {what}; the schedule has {count}"


def _peers_problems(schedule: Schedule, number: int) -> Iterator[str]:
    peers = schedule.peers[number]
    if len(peers) != schedule.ranks:
        yield f"peers {number}: it has {len(peers)} ranks; the schedule has {schedule.ranks}"
    for rank, others in enumerate(peers):
        for other in others:
            for problem in _check_index("rank", other, schedule.ranks):
                yield f"peers {number}, of rank {rank}: {problem}"


def _pairs(schedule: Schedule) -> _Pairs:
    """Return, for each entry of ``Schedule.peers``, pairs of programs: one that waits, and the one for which
    it waits.

    A pair is included if all ranks for which the first program waits belong to the second. Index -1 is for
    dependencies within a program, which need no peers.
    """
    pairs = {(-1, part, part) for part in schedule.parts}
    for number, peers in enumerate(schedule.peers):
        for part in schedule.parts:
            awaited = {rank for rank in part.ranks for rank in peers[rank]}
            pairs |= {(number, part, one) for one in schedule.parts if awaited.issubset(one.ranks)}
    return frozenset(pairs)


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
    """Return quickly whether the links that one rank's transfer crosses are valid."""
    links = len(most)
    for link, coefficient in hops:
        if not (type(link) is type(coefficient) is int and 0 <= link < links):
            return False
        if not 1 <= coefficient <= most[link]:
            return False
    return len({link for link, _ in hops}) == len(hops)


def _block_problems(
    schedule: Schedule, where: str, block: Block, owners: Sequence[Program], pairs: _Pairs
) -> Iterator[str]:
    for position, op in enumerate(block.ops):
        if _is_sound(op, owners, pairs, len(schedule.routes)):
            continue
        for problem in _op_problems(schedule, op, owners):
            yield f"{where}, operation {position} ({op.kind} {op.label!r}): {problem}"


def _all_sound(schedule: Schedule) -> bool:
    owners, pairs, routes = schedule.owners, _pairs(schedule), len(schedule.routes)
    return all(
        type(block.repeat) is int and 1 <= block.repeat <= _MOST_REPEATS for block in schedule.blocks
    ) and all(_is_sound(op, owners, pairs, routes) for ops, _ in schedule.contents for op in ops)


def _is_sound(op: Op, owners: Sequence[Program], pairs: _Pairs, routes: int) -> bool:
    """Return quickly whether an operation is valid."""
    kind, _, on, fixed, size, route, after, _ = op
    streams = len(owners)
    if not (kind in _KINDS and type(on) is type(fixed) is type(size) is type(route) is int):
        return False
    if not (0 <= on < streams and fixed >= 0 and size >= 0 and -1 <= route < routes) or (route < 0 < size):
        return False
    for stream, back, peers in after:
        if not (type(stream) is type(back) is type(peers) is int and 0 <= stream < streams and back >= 0):
            return False
        if (peers != -1 or owners[stream] is not owners[on]) and (
            (peers, owners[on], owners[stream]) not in pairs
        ):
            return False
    return True


def _op_problems(schedule: Schedule, op: Op, owners: Sequence[Program]) -> Iterator[str]:
    if op.kind not in _KINDS:
        yield f"its kind must be one of {', '.join(get_args(OpKind))}"
    yield from _check_index("stream", op.stream, len(schedule.streams))
    yield from _check_count("fixed [ps]", op.fixed, least=0)
    yield from _check_count("size [B]", op.size, least=0)
    if op.route != -1:
        yield from _check_index("route", op.route, len(schedule.routes))
    elif op.size:
        yield f"it moves {op.size} B but has no route"
    for stream, back, peers in op.after:
        yield from _check_index("it depends on stream", stream, len(schedule.streams))
        yield from _check_count("its dependency's count back", back, least=0)
        own, other, label = owners[op.stream], owners[stream], schedule.labels[stream]
        if peers != -1:
            yield from _check_index("its dependency's peers", peers, len(schedule.peers))
            for rank in own.ranks:
                for wrong in [one for one in schedule.peers[peers][rank] if one not in other.ranks]:
                    yield f"rank {rank} waits for rank {wrong}, which has no stream {label!r}"
        elif own != other:
            yield f"it depends on stream {label!r} of another program; its peers must name the ranks"


# -- bounds ----------------------------------------------------------------------------------------
# Times of streams and links that follow from a schedule alone, and the transfers that can contend with each
# other.
#
# Contention is determined before the clock starts. A stream of a rank transfers one thing at a time. So a
# link that only one stream crosses is never shared; and a link that could carry the fastest transfers of
# all its streams simultaneously is never full. A transfer that crosses no other links has the rate that it
# has alone, whatever else runs, and its duration is known in advance.


_PICO = 10**12


def alone_rate(schedule: Schedule, *, route: int, rank: int) -> int:
    """Return the rate [B/s] of a transfer over ``route`` on ``rank`` that shares no link."""
    path = schedule.routes[route]
    shares = [schedule.links[link].capacity // coefficient for link, coefficient in path.hops[rank]]
    return min([path.cap, *shares])


def transfer_time(size: int, rate: int) -> int:
    """Return the time [ps] of ``size`` [B] at ``rate`` [B/s], rounded up."""
    return -(-size * _PICO // rate)


def stream_times(schedule: Schedule, ranks: Iterable[int] | None = None) -> Counter[tuple[int, int]]:
    """Return the least time [ps] for which each stream of each rank, (rank, stream), is occupied.

    ``ranks`` limits the result to these ranks; None means all.
    """
    ranks_by_rates: dict[tuple[int, ...], list[int]] = {}
    for rank in range(schedule.ranks) if ranks is None else ranks:
        rates = tuple([alone_rate(schedule, route=route, rank=rank) for route in range(len(schedule.routes))])
        ranks_by_rates.setdefault(rates, []).append(rank)
    fixed, moves = _operations(schedule)
    owners = schedule.owners
    times: Counter[tuple[int, int]] = Counter()
    for rates, own_ranks in ranks_by_rates.items():
        own = Counter(fixed)
        for (stream, route, size), count in moves.items():
            own[stream] += count * transfer_time(size, rates[route])
        for rank in own_ranks:
            for stream, time in own.items():
                if rank in owners[stream].ranks:
                    times[rank, stream] = time
    return times


def link_time(load: int, link: Link) -> int:
    """Return the time [ps] that a link takes for a load [B x coefficient]."""
    return transfer_time(load, link.capacity)


def link_loads(schedule: Schedule) -> list[int]:
    """Return the total load on each link [B x coefficient]."""
    transferred: Counter[tuple[int, int]] = Counter()
    for ops, times in schedule.contents:
        for op in ops:
            if op.size:
                transferred[op.stream, op.route] += times * op.size
    owners = schedule.owners
    loads = [0] * len(schedule.links)
    for (stream, route), size in transferred.items():
        ranks = owners[stream].ranks
        for hops in schedule.routes[route].hops[ranks.start : ranks.stop]:
            for link, coefficient in hops:
                loads[link] += size * coefficient
    return loads


def _operations(schedule: Schedule) -> tuple[Counter[int], Counter[tuple[int, int, int]]]:
    """Return the fixed time [ps] by stream, and how often each stream moves each size over each route, on
    each rank."""
    fixed: Counter[int] = Counter()
    moves: Counter[tuple[int, int, int]] = Counter()
    for ops, times in schedule.contents:
        for op in ops:
            fixed[op.stream] += times * op.fixed
            if op.size:
                moves[op.stream, op.route, op.size] += times
    return fixed, moves


class Contention(NamedTuple):
    """The transfers whose rate is constant, and the links that are never full."""

    rates: tuple[tuple[int, ...], ...]
    """Rate [B/s] of a transfer over each route on each rank, if it is constant; 0 where it depends on
    others."""
    wide: frozenset[int]
    """Links that several streams cross and never fill."""


def find_contention(schedule: Schedule) -> Contention:
    """Separate transfers whose rate never changes from those that may share a link that is full."""
    owners = schedule.owners
    used = {(op.stream, op.route) for ops, _ in schedule.contents for op in ops if op.size}
    rates = [[1] * schedule.ranks for _ in schedule.routes]
    most: list[dict[tuple[int, int], int]] = [{} for _ in schedule.links]
    for stream, route in used:
        for rank in owners[stream].ranks:
            hops = schedule.routes[route].hops[rank]
            rates[route][rank] = rate = alone_rate(schedule, route=route, rank=rank)
            for link, coefficient in hops:
                own = most[link]
                # A link counts as full when 1 B/s more of each transfer would be too much for it.
                own[stream, rank] = max(own.get((stream, rank), 0), coefficient * (rate + 1))
    wide: set[int] = set()
    shared: set[int] = set()
    for link, loads in enumerate(most):
        if len(loads) > 1:
            fits = sum(loads.values()) <= schedule.links[link].capacity
            (wide if fits else shared).add(link)
    for ranks, route in {(owners[stream].ranks, route) for stream, route in used}:
        for rank in ranks:
            if any(link in shared for link, _ in schedule.routes[route].hops[rank]):
                rates[route][rank] = 0
    return Contention(tuple(map(tuple, rates)), frozenset(wide))
