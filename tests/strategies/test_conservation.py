"""Bytes that caches move over each link and in each direction, against closed forms, and rates against
capacities.

The network of the engine is metered: at every change the rates of all transfers are held against the capacity
of each link and of both directions of each cable together, and their integral against what the schedule
moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simoffload.documents import parse_yaml, yaml_text
from simoffload.engine import loop
from simoffload.engine.network import Network
from simoffload.hardware import Machine
from simoffload.hardware.quantities import Curve
from simoffload.scenario import LoadedScenario, resolve
from simoffload.schedule import Schedule
from simoffload.schedule.checks import Contention
from simoffload.strategies.base import traffic
from tests.examples import some

HEAD, VOCABULARY = 64, 1000
"""Elements of a head of most models here, and tokens of the vocabulary of all."""


class Shape(NamedTuple):
    """A model small enough to be simulated often."""

    family: str
    layers: int
    heads: int
    kept: int
    """Heads of keys and values."""
    head: int = HEAD
    """Elements of a head."""

    @property
    def hidden(self) -> int:
        return self.heads * self.head

    @property
    def token(self) -> int:
        """Bytes of a token in the cache of one layer."""
        return 2 * self.kept * self.head * 2

    @property
    def groups(self) -> int:
        """Groups of 64 elements, of 36 bytes in 4 bits, of which heads have whole numbers."""
        return 2 * self.kept * ceil(self.head / 64)

    @property
    def section(self) -> dict[str, Any]:
        wide = {"opt": "ffn_dim", "llama": "intermediate_size"}
        kept = {"num_key_value_heads": self.kept} if self.family == "llama" else {}
        return {
            "family": self.family,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "vocab_size": VOCABULARY,
            **({wide[self.family]: 3 * self.hidden} if self.family in wide else {}),
            **kept,
        }


@st.composite
def shapes(draw: st.DrawFn, *families: str, widths: Sequence[int] = (HEAD,)) -> Shape:
    heads = draw(st.sampled_from([8, 16]))
    family = draw(st.sampled_from(families))
    kept = draw(st.sampled_from([4, heads])) if family == "llama" else heads
    return Shape(family, draw(st.integers(1, 5)), heads, kept, draw(st.sampled_from(widths)))


class Work(NamedTuple):
    """Sequences, and tokens in and out."""

    batch: int
    prompt: int
    output: int


works = st.builds(Work, st.integers(1, 24), st.integers(17, 600), st.one_of(st.just(1), st.integers(2, 40)))


def scenario(
    shape: Shape, work: Work, strategy: dict[str, Any], *, platform: str = "dgx-h100"
) -> LoadedScenario:
    names = dict(zip(("batch_size", "prompt_length", "output_length"), work, strict=True))
    content = {"name": "conserved", "model": {**shape.section, "dtype": "float16"}, "platform": platform}
    return resolve(parse_yaml(yaml_text({**content, "workload": names, "strategy": strategy}), name="s.yaml"))


class Meter(Network[Any]):
    """A Meter holds the rates of every instant against the capacities of the links."""

    last: Meter
    both_ways: Sequence[tuple[int, int, float]] = ()
    """Links of the two directions of each cable, and what it carries in both together [B/s]."""

    def __init__(self, *arguments: Any, **keys: Any) -> None:
        super().__init__(*arguments, **keys)
        self.carried = [0] * len(self._links)
        """[B x coefficient x 10^12] over each link so far."""
        self._now, self._loads = 0, dict[int, int]()
        Meter.last = self

    def count(self) -> None:
        """Add what was carried since the last change."""
        for link, load in self._loads.items():
            self.carried[link] += load * (self._clock.now - self._now)
        self._now, self._loads = self._clock.now, {}

    def _share_links(self) -> None:
        self.count()
        super()._share_links()
        for flow in self._active:
            for link, coefficient in self._paths[flow.path].hops:
                self._loads[link] = self._loads.get(link, 0) + coefficient * flow.rate
        for link, load in self._loads.items():
            assert load <= self._capacities[link], self._links[link].name
        for there, back, most in self.both_ways:
            rates = (self._loads.get(one, 0) / self._links[one].scale for one in (there, back))
            assert sum(rates) <= most


class Booked(NamedTuple):
    """Bytes of one pass over links, of all GPUs."""

    down: int
    """Over the cables to the GPUs."""
    up: int
    read: int
    """From drives and servers."""
    written: int
    memory: float
    """Over the memory of all hosts."""

    def less(self, other: Booked) -> tuple[int, ...]:
        """Both directions of the cables, and storage, without what another pass moves."""
        return tuple(one - two for one, two in zip(self[:4], other[:4], strict=True))


def booked(found: LoadedScenario, schedule: Schedule, *, block: int | None = None) -> Booked:
    """Execute a schedule with the meter, and return what it has moved; ``block``: all copies are of blocks of
    this size [B]."""
    machine = found.machine
    cables = [_cables(machine, gpu, block) for gpu in range(machine.gpus)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "Network", Meter)
        patch.setattr(loop, "find_contention", _all_contended)
        patch.setattr(Meter, "both_ways", [one for cable in cables for one in cable])
        timeline = loop.execute(schedule, rank_symmetry=False, steady_state=False)
    meter = Meter.last
    meter.count()
    assert timeline.makespan == loop.execute(schedule).makespan
    for link, load, carried in zip(schedule.links, timeline.link_loads, meter.carried, strict=True):
        # A transfer ends at the first picosecond at which nothing remains.
        assert carried / 1e12 == pytest.approx(load, rel=1e-6, abs=link.scale * (1 + schedule.operations))
    names = {link.name: size for link, size in zip(schedule.links, timeline.link_bytes, strict=True)}

    def total(*ends: str) -> int:
        return sum(size for name, size in names.items() if name.endswith(ends))

    last = [_ends(machine, gpu) for gpu in range(machine.gpus)]
    down, up = (sum(names[one[way]] for one in last) for way in (0, 1))
    return Booked(down, up, total(" read"), total(" write"), total("dram"))


def _all_contended(schedule: Schedule) -> Contention:
    """Let every transfer go through the network, also those whose rate cannot change."""
    return Contention(((0,) * schedule.ranks,) * len(schedule.routes), frozenset())


def _ends(machine: Machine, gpu: int) -> tuple[str, str]:
    """Names of both directions of the cable at a GPU."""
    there, back, _ = _cables(machine, gpu)[-1]
    return machine.resources[there].name, machine.resources[back].name


def _cables(machine: Machine, gpu: int, block: int | None = None) -> list[tuple[int, int, float]]:
    """Links of both directions of each cable on the way to a GPU, and what it carries in both together."""
    topology, pcie = machine.topology, machine.topology.gpu_pcie_link.pcie
    cpu, device = topology.cpus[0], topology.gpus[gpu]
    share, small = pcie.both_ways.value, pcie.both_ways_by_size
    if block is not None and small is not None:
        assert small.points == ((2 << 20, 83_400_000_000),)
        share = Curve(((2 << 20, 83.4), (64 << 20, share * 110.9))).at(block) / 110.9
    ways = topology.graph.route(cpu, device), topology.graph.route(device, cpu)
    there, back = ([one for one in way if machine.resources[one].kind == "pcie"] for way in ways)
    return [
        (one, two, share * sum(machine.resources[at].capacity for at in (one, two)) * (1 + 1e-6))
        for one, two in zip(there, back[::-1], strict=True)
    ]


def passes(found: LoadedScenario, step: int) -> list[Schedule]:
    """The prefill, and a decode step if there is any."""
    plan: Any = found.plan()
    prefill = next(one for one in plan.phases if one.kind == "prefill").schedule({})
    series = plan.phases[-1]
    return [prefill, series.step(step).schedule({})] if series.steps >= step else [prefill]


# -- offloaded caches of transformers ------------------------------------------------------------

HOLDERS: list[dict[str, Any]] = [
    {"kind": "transformers"},
    {"kind": "accelerate", "device_map": "cuda"},
    {"kind": "deepspeed", "weights": "hbm"},
    {"kind": "deepspeed", "weights": "dram"},
    {"kind": "deepspeed", "weights": "raid", "ranks": 2},
    {"kind": "transformers", "tensor_parallel_size": 4},
]


@settings(max_examples=some(15))
@given(
    shape=shapes("llama", "bloom", "opt"),
    work=works,
    holder=st.sampled_from(HOLDERS),
    static=st.booleans(),
    step=st.integers(1, 39),
)
def test_an_offloaded_cache(
    shape: Shape, work: Work, holder: dict[str, Any], *, static: bool, step: int
) -> None:
    """Dynamic: every layer goes back with the new token, and comes with those before it, the first one,
    which the last one fetches, with the new one, too. Static: all of the room."""
    implementation = {"implementation": "static"} if static else {}
    offloaded = scenario(shape, work, {**holder, "kv_cache": {"tier": "dram", **implementation}})
    inside = scenario(shape, work, holder)
    replicas = holder.get("ranks", 1)
    token = replicas * work.batch * shape.token
    room = work.prompt + work.output - 1
    contexts = [work.prompt, work.prompt + step]
    pairs = zip(passes(offloaded, step), passes(inside, step), contexts, strict=False)
    for number, (own, other, context) in enumerate(pairs):
        size = room if static else context
        first, later = (0, size if static else size - 1)[number], (0, (shape.layers - 1))[number]
        down = token * (first * later + size) if number else token * size
        moved = booked(offloaded, own), booked(inside, other)
        assert moved[0].less(moved[1]) == (down, shape.layers * token * size, 0, 0)
        memory = down + _from_gpu(offloaded) * shape.layers * token * size
        assert moved[0].memory - moved[1].memory == pytest.approx(memory, rel=0.01)


def _from_gpu(found: LoadedScenario) -> float:
    """Bytes of traffic of host memory for each byte that a GPU writes there."""
    per_byte = found.machine.host.from_gpu_traffic
    return float(per_byte.value) if per_byte else 1.0


# -- connectors of vLLM --------------------------------------------------------------------------


@st.composite
def connectors(draw: st.DrawFn) -> dict[str, Any]:
    tier, layerwise = draw(st.sampled_from(["dram", "raid", "nfs", "pfs"])), draw(st.booleans())
    return {
        "tier": tier,
        "prefix": draw(st.integers(0, 500)),
        "block_tokens": draw(st.sampled_from([1, 7, 16, 256])),
        "layerwise": layerwise,
        "direct": tier in ("raid", "pfs") and draw(st.booleans()),
        "store": draw(st.booleans()),
    } | ({} if layerwise else {"cross_layer_blocks": draw(st.booleans())})


LARGE = {"tier": "dram", "prefix": 256, "block_tokens": 256, "layerwise": False, "direct": False}


@settings(max_examples=some(20))
@example(  # blocks of 5 MiB in both directions at once
    shape=Shape("llama", 5, 16, 16),
    work=Work(24, 600, 1),
    connector={**LARGE, "store": True, "cross_layer_blocks": True},
    weights={},
    gpus=1,
    stages=1,
)
@example(  # micro-batches of two sizes, each of which stores its own blocks
    shape=Shape("llama", 2, 8, 4),
    work=Work(5, 200, 3),
    connector={"tier": "raid", "prefix": 64, "block_tokens": 16, "layerwise": True}
    | {"direct": False, "store": True},
    weights={},
    gpus=1,
    stages=2,
)
@given(
    shape=shapes("llama", "bloom"),
    work=works,
    connector=connectors(),
    weights=st.sampled_from([{}, {"cpu_offload_gb": 0.01}, {"offload_group_size": 1}]),
    gpus=st.sampled_from([1, 2, 4]),
    stages=st.sampled_from([1, 2]),
)
def test_a_connector(
    shape: Shape, work: Work, connector: dict[str, Any], weights: dict[str, Any], gpus: int, stages: int
) -> None:
    """Full blocks of the prefix come before the prefill, new ones go during it, or equal parts of them during
    decode steps; by way of pinned buffers each byte crosses host memory twice."""
    shape = shape._replace(layers=stages * shape.layers)
    degrees = {"tensor_parallel_size": gpus, "pipeline_parallel_size": stages}
    strategy = {"kind": "vllm", **degrees, **weights}
    size, tier = connector["block_tokens"], connector["tier"]
    connector["prefix"] = prefix = min(connector["prefix"], work.prompt - 1)
    found = scenario(shape, work, {**strategy, "kv_cache": {"connector": connector}})
    # The prefill of as many tokens: kernels read weights in place again for every tile of them.
    plain = scenario(shape, work._replace(prompt=work.prompt - prefix // size * size), strategy)
    steps = work.output - 1
    last = work.prompt + (0 if connector["layerwise"] else steps)
    block = size * shape.layers * shape.token * work.batch
    loads = prefix // size * block
    stores = (last // size - prefix // size) * block * connector["store"]
    during = stores if connector["layerwise"] or not steps else 0
    ranks = gpus * stages
    part = 0 if connector["layerwise"] or not steps else ranks * -(-(stores // ranks) // steps)
    piece = size * shape.layers * shape.token // ranks if connector.get("cross_layer_blocks") else 1
    expected = ((loads, during), (0, part))
    for own, other, (down, up) in zip(passes(found, 1), passes(plain, 1), expected, strict=False):
        only_blocks = None if weights or connector["direct"] else piece
        moved = booked(found, own, block=only_blocks), booked(plain, other)
        beyond = (0, 0) if tier == "dram" else (down, up)
        assert moved[0].less(moved[1]) == (down, up, *beyond)
        memory = 0 if connector["direct"] else down + _from_gpu(found) * up + sum(beyond)
        assert moved[0].memory - moved[1].memory == pytest.approx(memory, rel=0.01)
    (stored,) = traffic(found.plan())  # type: ignore[attr-defined]
    assert (stored.read, stored.written) == (loads, stores)


# -- a streamed cache ----------------------------------------------------------------------------


@settings(max_examples=some(10))
@example(shape=Shape("llama", 1, 8, 4), work=Work(8, 1, 4), tier="raid", gpus=2, stages=4)
@given(
    shape=shapes("llama", "bloom"),
    work=st.builds(Work, st.integers(1, 12), st.integers(1, 100), st.integers(1, 4)),
    tier=st.sampled_from(["raid", "nfs"]),
    gpus=st.sampled_from([1, 2]),
    stages=st.sampled_from([1, 2, 4]),
)
def test_a_streamed_cache(shape: Shape, work: Work, tier: str, gpus: int, stages: int) -> None:
    """Keys, and values, of a layer are read and written in whole pages, those of a prompt by each micro-batch
    on its own, and cross the cables byte by byte; the traffic of a generation is what all passes move."""
    shape = shape._replace(layers=stages * shape.layers)
    degrees = {"tensor_parallel_size": gpus, "pipeline_parallel_size": stages}
    cache = {"tier": tier, "implementation": "streamed"}
    strategy = {"kind": "vllm", **degrees}
    found, plain = (scenario(shape, work, {**strategy, **one}) for one in ({"kv_cache": cache}, {}))

    def paged(tokens: int) -> int:
        size = shape.token // 2 // gpus
        return 2 * gpus * shape.layers * -(-tokens * size // 4096) * 4096

    count = min(stages, work.batch)
    micro = [(work.batch + number) // count for number in range(count)]
    expected = [(0, sum(paged(one * work.prompt) for one in micro))]
    expected += [
        (paged(work.batch * (work.prompt + step - 1)), paged(work.batch)) for step in range(1, work.output)
    ]
    prefill, *_ = passes(found, 1)
    schedules = [prefill, *(passes(found, step)[1] for step in range(1, work.output))]
    moved = [booked(found, one) for one in schedules]
    assert [(one.read, one.written) for one in moved] == expected
    token = work.batch * shape.layers * shape.token
    crossed = [(0, token * work.prompt), (token * work.prompt, token)]
    for own, other, ways in zip(moved, passes(plain, 1), crossed, strict=False):
        assert own.less(booked(plain, other))[:2] == ways
    (stored,) = traffic(found.plan())  # type: ignore[attr-defined]
    assert (stored.read, stored.written) == tuple(map(sum, zip(*expected, strict=True)))


# -- attention on the CPU ------------------------------------------------------------------------


@settings(max_examples=some(10))
@given(
    shape=shapes("llama", "bloom", "opt"),
    work=works,
    weights=st.sampled_from(["hbm", "dram", "raid"]),
    asynchronous=st.booleans(),
    ranks=st.sampled_from([1, 2]),
)
def test_attention_on_the_cpu(
    shape: Shape, work: Work, weights: str, *, asynchronous: bool, ranks: int
) -> None:
    """Keys and values of the prompt leave once; then those of each token, its query in single precision and
    the mask, and the result returns."""
    strategy = {"kind": "deepspeed", "weights": weights, "ranks": ranks}
    cache = {"tier": "dram", "implementation": "cpu_attention", "asynchronous": asynchronous}
    found, plain = scenario(shape, work, {**strategy, "kv_cache": cache}), scenario(shape, work, strategy)
    twice = 2 if asynchronous and shape.family != "bloom" else 1
    mask = (work.prompt + 1) * (4 * shape.heads + 1 if shape.family == "bloom" else 2)
    sent = shape.token + 4 * shape.hidden + mask
    returned = shape.hidden * (2 if shape.family == "opt" else 4)
    times = ranks * shape.layers * work.batch
    expected = ((0, twice * work.prompt * shape.token), (returned, sent))
    for own, other, (down, up) in zip(passes(found, 1), passes(plain, 1), expected, strict=False):
        assert booked(found, own).less(booked(plain, other)) == (times * down, times * up, 0, 0)


# -- FlexGen -------------------------------------------------------------------------------------


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    shares = {}
    for name in ("weights", "cache"):
        gpu = draw(st.sampled_from([0, 30, 100]))
        shares[name] = gpu, draw(st.sampled_from([0, 100 - gpu, (100 - gpu) // 2]))
    shares["activations"] = draw(st.sampled_from([(100, 0), (0, 100), (0, 0)]))
    percents = {
        f"{name}_{place}_percent": percent
        for name, pair in shares.items()
        for place, percent in zip(("gpu", "cpu"), pair, strict=True)
    }
    flags = {name: draw(st.booleans()) for name in ("pin_weight", "overlap", "sep_layer")}
    flags["compress_cache"] = 100 in (*shares["cache"], 100 - sum(shares["cache"])) and draw(st.booleans())
    disk: dict[str, Any] = {}
    if any(sum(pair) < 100 for pair in shares.values()):
        disk = {"disk": "nvme", "page_cache": False, "overlap": True}
    return {**percents, **flags, **disk, "gpu_batches": draw(st.integers(1, 3))}


@settings(max_examples=some(15))
@given(shape=shapes("opt", widths=(32, 64, 80, 128)), work=works, policy=policies())
def test_flexgen(shape: Shape, work: Work, policy: dict[str, Any]) -> None:
    """Weights come once; caches of whole sequences that are not on the GPU come whole and their new tokens
    go, in 4 bits with each head filled up to whole groups; hidden states go home after every slot and come
    back before the next one. Memory has room for the longest context."""
    batches = policy["gpu_batches"]
    each = -(-work.batch // batches)
    work = work._replace(batch=batches * each)
    found = scenario(shape, work, {"kind": "flexgen", **policy}, platform="gcp-t4")
    slots = found.plan().slots  # type: ignore[attr-defined]
    gpu, cpu = (policy[f"cache_{place}_percent"] for place in ("gpu", "cpu"))
    on_gpu = each * gpu // 100
    in_host = each - on_gpu if gpu + cpu == 100 else each * cpu // 100
    cached = [batches * number for number in (in_host, each - on_gpu - in_host)]
    token = 36 * shape.groups if policy["compress_cache"] else shape.token
    longest = shape.layers * (work.prompt + work.output - 1) * token
    memory = {term.tier: term.size for term in found.plan().held if term.name == "key-value cache"}  # type: ignore[attr-defined]
    placed = dict(zip(("hbm", "dram", "nvme"), (batches * on_gpu, *cached), strict=True))
    assert memory == {tier: longest * number for tier, number in placed.items() if number}
    home = policy["activations_gpu_percent"], policy["activations_cpu_percent"]
    turns = (2 if policy["sep_layer"] else 1) * shape.layers + 1
    for number, own in enumerate(passes(found, 1)):
        new, before = (1, work.prompt + 1) if number else (work.prompt, 0)
        hidden = 0 if home[0] else turns * work.batch * new * shape.hidden * 2
        old, fresh = ([one * shape.layers * token * n for one in cached] for n in (before, new))
        on_disk = 0 if sum(home) else hidden
        weights = slots.weight_bytes("dram") + slots.weight_bytes("nvme")
        assert booked(found, own)[:4] == (
            weights + sum(old) + hidden,
            sum(fresh) + hidden,
            slots.weight_bytes("nvme") + old[1] + on_disk,
            fresh[1] + on_disk,
        )
