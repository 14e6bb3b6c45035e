"""Schedules of several programs, of several GPUs in a process and of work on CPUs, with times by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from simoffload.engine import execute
from simoffload.engine.fold import fold_ranks
from simoffload.engine.loop import Loop
from simoffload.errors import DeadlockError
from simoffload.results.attribution import attribute
from simoffload.results.passes import summarize_pass
from simoffload.results.timeline import Timeline
from simoffload.schedule import Block, Cause, Dependency, Device, Link, Op, Program, Route, Schedule
from simoffload.schedule.builder import ScheduleBuilder, cpu_work
from simoffload.schedule.checks import link_loads, stream_times
from simoffload.simulation.runner import verify

SECOND = 10**12
GPU = Device("GPU")


def wait(stream: int, seconds: int, *after: Dependency, kind: str = "compute") -> Op:
    return Op(kind, "", stream, fixed=seconds * SECOND, after=after)


def seconds(timeline: Timeline, stream: int, rank: int) -> list[tuple[float, float]]:
    """(start, end) of the operations of one stream of one rank."""
    found = sorted((one.start, one.end) for one in timeline if (one.rank, one.op.stream) == (rank, stream))
    return [(start / SECOND, end / SECOND) for start, end in found]


# ---- stages of a pipeline ----

FIRST, SENT, SECOND_STAGE = range(3)
FORWARD, BACKWARD = range(2)
"""Peers: stage 1 waits for the rank of stage 0 with the same number, or stage 0 for that of stage 1."""


def stages(*blocks: Block, width: int = 1) -> Schedule:
    """Two stages of ``width`` processes; the first computes and sends what it has computed forward."""
    first, second = range(width), range(width, 2 * width)
    forward = (*[()] * width, *[(rank,) for rank in first])
    backward = (*[(rank,) for rank in second], *[()] * width)
    return Schedule(
        "pipeline",
        2 * width,
        ("compute", "send", "compute"),
        (),
        (),
        blocks,
        devices=(GPU, GPU, GPU),
        programs=(Program("stage 0", first, range(2)), Program("stage 1", second, range(2, 3))),
        peers=(forward, backward),
    )


def forward(ahead: int) -> tuple[Op, Op, Op]:
    """1 s on each stage; the first is so many micro-batches ahead."""
    sent = Op("copy", "", SENT, after=(Dependency(FIRST),))
    return wait(FIRST, 1), sent, wait(SECOND_STAGE, 1, Dependency(SENT, ahead, FORWARD))


BACK = wait(SECOND_STAGE, 2), wait(FIRST, 2, Dependency(SECOND_STAGE, 0, BACKWARD))


def test_all_micro_batches_forward_and_then_back() -> None:
    """Forward takes 1 s and backward 2 s a stage. 4 micro-batches take 12 s, and each stage stands still for
    the other's first forward and last backward: 1 s + 2 s."""
    timeline = execute(stages(Block("forward", forward(0), 4), Block("backward", BACK, 4)))
    assert seconds(timeline, FIRST, 0) == [
        *((i, i + 1) for i in range(4)),
        (7, 9),
        (9, 11),
        (11, 13),
        (13, 15),
    ]
    assert seconds(timeline, SECOND_STAGE, 1) == [
        *((i + 1, i + 2) for i in range(4)),
        *((5, 7), (7, 9), (9, 11), (11, 13)),
    ]


def one_forward_one_backward(micro_batches: int, *, width: int = 1) -> Schedule:
    """Stage 0 is one micro-batch ahead."""
    return stages(
        Block("warm-up", forward(0)[:2]),
        Block("steady", (*forward(1), *BACK), micro_batches - 1),
        Block("last", (forward(0)[2], *BACK)),
        width=width,
    )


def test_one_forward_one_backward_has_the_same_bubble() -> None:
    """4 micro-batches of 3 s and 3 s of standing still; stage 0 waits for the first backward of stage 1 from
    2 s to 4 s, and for the last one from 12 s to 13 s."""
    timeline = execute(one_forward_one_backward(4))
    assert seconds(timeline, FIRST, 0) == [
        *((0, 1), (1, 2), (4, 6), (6, 7)),
        *((7, 9), (9, 10), (10, 12), (13, 15)),
    ]
    assert seconds(timeline, SECOND_STAGE, 1) == [
        *((1, 2), (2, 4), (4, 5), (5, 7)),
        *((7, 8), (8, 10), (10, 11), (11, 13)),
    ]


def test_a_thousand_micro_batches_are_counted_and_their_ranks_folded() -> None:
    schedule = one_forward_one_backward(1000, width=8)
    timeline = execute(schedule)
    verify(timeline, execute(schedule, rank_symmetry=False, steady_state=False))
    assert timeline.makespan == 1001 * 3 * SECOND
    assert timeline.classes == (tuple(range(8)), tuple(range(8, 16)))
    assert timeline.entries < 30
    assert len(timeline) == timeline.schedule.operations == 8 * 1000 * 5
    (jump,) = timeline.how.skipped
    assert (jump.name, jump.period, jump.length) == ("steady", 1, 3 * SECOND)


def test_the_critical_path_crosses_the_stages() -> None:
    """Stage 0 is on it at least with the first forward and the last backward."""
    timeline = execute(one_forward_one_backward(4))
    found = attribute(timeline)
    first, second = "stage 0: GPU 0 compute", "stage 1: GPU 0 compute"
    assert found.end == sum(found.exposed.values()) == sum(found.exposed_streams.values()) == 15 * SECOND
    assert (found.busy_streams[first], found.busy_streams[second]) == (12 * SECOND, 12 * SECOND)
    assert found.exposed_streams[first] >= 3 * SECOND
    assert found.exposed_streams[second] >= 3 * SECOND, "its last micro-batch"
    result = summarize_pass(timeline, new_tokens=1, context=1, ends_with=second)
    assert (result.time_s, result.unfinished_s) == (13, 2)
    assert result.bounds == {"GPU compute": 12}


def test_ranks_of_stages_differ_by_the_ranks_they_wait_for() -> None:
    """Rank 2 waits for rank 0, which is alone on its link, rank 3 for rank 1, which is not."""
    links = (Link("own", 10), Link("shared", 10))
    hops = (((0, 1),), ((1, 1),), (), ())
    sent = Op("copy", "", SENT, size=100, route=0)
    received = wait(SECOND_STAGE, 1, Dependency(SENT, 0, FORWARD))
    stage = stages(Block("b", (sent, received)), width=2)
    schedule = stage._replace(links=links, routes=(Route(Cause.own("send"), hops, 50),))
    assert fold_ranks(schedule).classes == ((0, 1), (2, 3))
    slow = schedule._replace(links=(links[0], Link("shared", 5)))
    assert fold_ranks(slow).classes == ((0,), (1,), (2,), (3,))
    timeline = execute(slow)
    assert [seconds(timeline, SECOND_STAGE, rank) for rank in (2, 3)] == [[(10, 11)], [(20, 21)]]
    assert link_loads(slow) == list(timeline.link_loads) == [100, 100]
    assert {place: time // SECOND for place, time in stream_times(slow).items()} == {
        (0, SENT): 10,
        (1, SENT): 20,
        (2, SECOND_STAGE): 1,
        (3, SECOND_STAGE): 1,
    }


def test_each_rank_of_a_ring_waits_for_the_one_before_it() -> None:
    """In a ring all ranks are alike; with a first one that waits for nobody each is later than the last."""
    ring = tuple(((rank - 1) % 3,) for rank in range(3))
    ops = (wait(0, 1), wait(1, 2, Dependency(1, 0, 0), Dependency(0)))
    schedule = Schedule("ring", 3, ("a", "b"), (), (), (Block("b", ops, 5),), peers=(ring,))
    assert fold_ranks(schedule).classes == ((0, 1, 2),)
    assert execute(schedule).makespan == execute(schedule, rank_symmetry=False).makespan == 11 * SECOND
    line = Schedule("line", 3, ("a",), (), (), (Block("b", (wait(0, 1), wait(0, 2, Dependency(0, 0, 0)))),))
    line = line._replace(peers=(((), (0,), (1,)),))
    assert fold_ranks(line).classes == ((0,), (1,), (2,))


# ---- prefill and decoding on hosts of their own ----


def disaggregated(*blocks: Block) -> Schedule:
    """Two processes for prefill, that send over the network at 100 B/s in all, and one that decodes."""
    return Schedule(
        "served",
        3,
        ("compute", "send", "compute"),
        (Link("network", 100),),
        (Route(Cause.own("send"), (((0, 1),), ((0, 1),), ()), 80),),
        blocks,
        programs=(Program("prefill", range(2), range(2)), Program("decode", range(2, 3), range(2, 3))),
        peers=(((), (), (0, 1)),),
    )


def test_decoding_begins_when_all_have_sent() -> None:
    """Prefill takes 1 s; the two of them send 100 B each at 50 B/s until 3 s."""
    send = Op("copy", "", 1, size=100, route=0, after=(Dependency(0),))
    timeline = execute(
        disaggregated(Block("request", (wait(0, 1), send, wait(2, 4, Dependency(1, 0, 0))), 2))
    )
    assert seconds(timeline, 1, 1) == [(1, 3), (3, 5)]
    assert seconds(timeline, 2, 2) == [(3, 7), (7, 11)]
    assert timeline.link_bytes == (400,)
    sizes = {one.cause_text: one.size for one in summarize_pass(timeline, new_tokens=1, context=1).shares}
    assert sizes["send"] == 400


def test_programs_in_blocks_of_their_own_are_run_in_full_while_both_are_under_way() -> None:
    prefill = Block("prefill", (wait(0, 7),), 100)
    decode = Block("decode", (wait(2, 13),), 100)
    timeline = execute(disaggregated(prefill, decode))
    assert timeline.makespan == 1300 * SECOND
    (jump,) = timeline.how.skipped
    assert jump.name == "decode"
    assert timeline.how.not_steady == ("block 'prefill': no cycle in 100 iterations (99 states compared)",)
    full = execute(disaggregated(prefill, decode), rank_symmetry=False, steady_state=False)
    assert list(timeline.all_operations.end) == list(full.all_operations.end)


def test_a_deadlock_names_ranks_of_other_programs() -> None:
    """A sound schedule has none, as it only counts back."""
    story = disaggregated(Block("request", (wait(2, 1, Dependency(1, -1, 0)),)))
    with pytest.raises(
        DeadlockError,
        match=r"rank 2, stream 'decode: compute': .* for operation 1 of stream 'prefill: send' of rank 0",
    ):
        Loop(story).run()


# ---- one process with several GPUs ----


def test_copies_to_two_gpus_of_a_process_share_a_link() -> None:
    """Half each until GPU 1 has its 100 B at 2 s; then 100 B more for GPU 0 alone. Its result goes on."""
    copies = [Op("copy", "", stream, size=size, route=0) for stream, size in ((1, 200), (3, 100))]
    computed = wait(2, 5, Dependency(1)), wait(4, 6, Dependency(3), Dependency(2))
    schedule = Schedule(
        "device map",
        1,
        ("host", "copy", "compute", "copy", "compute"),
        (Link("host memory", 100),),
        (Route(Cause("host-to-gpu"), (((0, 1),),), 100),),
        (Block("layer", (*copies, *computed)),),
        devices=(Device("host thread"), GPU, GPU, Device("GPU", 1), Device("GPU", 1)),
    )
    timeline = execute(schedule)
    assert [seconds(timeline, stream, 0) for stream in range(1, 5)] == [
        [(0, 3)],
        [(3, 8)],
        [(0, 2)],
        [(8, 14)],
    ]
    assert (schedule.processes, schedule.gpus) == (1, 2)
    assert schedule.labels == ("host", "GPU 0 copy", "GPU 0 compute", "GPU 1 copy", "GPU 1 compute")
    assert attribute(timeline).exposed_streams == {
        "GPU 0 copy": 3 * SECOND,
        "GPU 0 compute": 5 * SECOND,
        "GPU 1 compute": 6 * SECOND,
    }


def test_processes_and_gpus_are_counted_apart() -> None:
    assert (stages(width=4).processes, stages(width=4).gpus) == (8, 8)
    on_cpu = stages(width=4)._replace(devices=(GPU, GPU, Device("CPU", 1)))
    assert (on_cpu.processes, on_cpu.gpus) == (8, 4)
    old = Schedule("old", 3, ("host", "compute"), (), (), ())
    assert (old.processes, old.gpus, old.labels) == (3, 3, ("host", "compute"))


# ---- work of a CPU ----


def cpu_schedule(*work: tuple[int, int, int], copied: int) -> Schedule:
    """8 cores on 100 GB/s of memory do ``work`` (GB, seconds alone, cores), while a GPU copies from there."""
    streams = ("copy", *(f"work {number}" for number in range(len(work))))
    devices = (GPU, *(Device("CPU") for _ in work))
    builder = ScheduleBuilder(name="cpu", ranks=1, streams=streams, devices=devices)
    copy = builder.route(cause=Cause("host-to-gpu"), hops=(((0, Fraction(1)),),), cap=60 * 10**9)
    if copied:
        builder.add(Op("copy", "", 0, size=copied * 10**9, route=copy))
    for stream, (size, time, cores) in enumerate(work, 1):
        cap, share = cpu_work(size=size * 10**9, time=time * SECOND, cores=cores)
        route = builder.route(cause=Cause.own("attention"), hops=(((0, Fraction(1)), (1, share)),), cap=cap)
        builder.add(Op("cpu", "", stream, size=size * 10**9, route=route))
    return builder.build([("DRAM", 100 * 10**9)], cores=[("cores", 8)])


def test_a_cpu_alone_takes_the_time_of_its_cores() -> None:
    timeline = execute(cpu_schedule((240, 3, 4), copied=0))
    assert timeline.makespan == 3 * SECOND
    assert timeline.link_bytes == (240 * 10**9, 12 * 10**9), "bytes, and nanoseconds of a core"
    assert timeline.schedule.gpus == 1


def test_a_cpu_and_a_copy_share_the_memory() -> None:
    """Both want more than half of 100 GB/s, 80 and 60. The copy of 120 GB takes 2.4 s at 50 GB/s; the CPU has
    120 GB left then, at 80 GB/s."""
    timeline = execute(cpu_schedule((240, 3, 4), copied=120))
    assert (seconds(timeline, 0, 0), seconds(timeline, 1, 0)) == ([(0, 2.4)], [(0, 3.9)])


def test_work_on_a_cpu_shares_its_cores() -> None:
    """Each wants all cores for 3 s and little of the memory."""
    timeline = execute(cpu_schedule((60, 3, 8), (60, 3, 8), copied=0))
    assert timeline.makespan == 6 * SECOND
    assert timeline.link_saturated == (0, 6 * SECOND)


def test_work_of_a_cpu_counts_as_the_hosts() -> None:
    found = attribute(execute(cpu_schedule((240, 3, 4), copied=120)))
    assert found.groups == {Cause.own("attention"): "host", Cause("host-to-gpu"): "transfers"}
    assert found.exposed_streams == {"CPU 0 work 0": 3.9 * SECOND}
