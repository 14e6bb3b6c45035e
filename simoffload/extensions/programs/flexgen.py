"""FlexGen (FlexLLMGen): a block of GPU batches, with weights, cache and hidden states divided by percentages.

Reference: FMInference/FlexLLMGen@004ffef, ``flexllmgen/flex_opt.py`` and ``pytorch_backend.py``. Its parts:
what its code keeps where, the GPU times of its kernels, what it does when, its keys, and its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, pairwise, product
from math import prod
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from simoffload.documents import Edit, either
from simoffload.errors import InputError
from simoffload.hardware import Accelerator, Machine, Tier
from simoffload.models import SINGLE, ModelShape, Module, ModuleCost, Sequences
from simoffload.results import FLEXGEN_4BIT, Change, HeldKind
from simoffload.schedule import Cause, CauseKind, Dependency, OpKind
from simoffload.strategies.base import (
    HBM,
    ROUNDING,
    Description,
    Held,
    Home,
    Placement,
    Placements,
    Plan,
    ProgramTraits,
    SizeEdits,
    StorageTier,
    Strategy,
    Tunable,
    Tunables,
    memory_tunables,
    pinned_rounding,
)
from simoffload.strategies.cache.cache_updates import ONE_QUERY
from simoffload.strategies.memory import system_memory
from simoffload.strategies.passes.pass_writer import (
    COMPUTE,
    HOST,
    Call,
    ForwardPass,
    Hook,
    Part,
    PassWriter,
    StagePass,
    loops_rate,
    mapped_read,
)
from simoffload.strategies.passes.timing import PassTimings, Timing, arithmetic_beyond, picoseconds
from simoffload.strategies.plan import InferencePlan
from simoffload.units import format_bytes
from simoffload.workload import Inference

Percent = Annotated[int, Field(strict=True, ge=0, le=100)]
Flag = Annotated[bool, Field(strict=True)]


class FlexGen(Strategy):
    """Inference under FlexGen, which offloads weights, key-value cache and hidden states of OPT models; the
    workload's batch is its block."""

    traits: ClassVar = ProgramTraits(title="FlexGen", spans_hosts=False)
    serves: ClassVar = frozenset({"inference"})
    elsewhere: ClassVar = {
        "kv_cache": "FlexGen's cache is placed by cache_gpu_percent and cache_cpu_percent (the rest is on "
        "disk), compress_cache keeps it in 4 bits, and cpu_attention attends to it on the CPU; remove the "
        "section"
    }

    kind: Literal["flexgen"] = "flexgen"
    ranks: Literal[1] = 1
    """Number of processes; FlexGen uses one GPU."""
    weights_gpu_percent: Percent = 100
    """Percentage of the weights on the GPU, the first number of ``--percent``; whole tensors are placed."""
    weights_cpu_percent: Percent = 0
    """Percentage of the weights in host memory; the rest is on disk."""
    cache_gpu_percent: Percent = 100
    """Percentage of the key-value cache on the GPU, in whole sequences."""
    cache_cpu_percent: Percent = 0
    """Percentage of the key-value cache in host memory, which is never pinned; the rest is on disk."""
    activations_gpu_percent: Percent = 100
    """Percentage of the hidden states between layers on the GPU: 100 or 0."""
    activations_cpu_percent: Percent = 0
    """Percentage of the hidden states in host memory, 100 or 0; the rest is on disk."""
    disk: StorageTier | None = None
    """Storage tier that holds what is on disk (``--offload-dir``)."""
    page_cache: Flag | None = None
    """Whether the files on disk are in the operating system's page cache; by default they are if they fit in
    the host memory that is free."""
    gpu_batches: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 1
    """Number of GPU batches into which the workload's batch, the block, is divided; they use the weights one
    after the other (``--num-gpu-batches``)."""
    pin_weight: Flag = True
    """Whether weights in host memory are pinned; vectors always are."""
    compress_weight: Flag = False
    """Whether weights are stored in 4 bits, and written in full on the GPU before each use."""
    compress_cache: Flag = False
    """Whether keys and values are stored in 4 bits, and written in full for each token."""
    cpu_attention: Flag = False
    """Whether the CPU attends to keys and values in host memory and on disk (``--cpu-cache-compute``)."""
    overlap: Flag = True
    """Whether copies have streams of their own and slots end with a synchronization; false: one stream."""
    sep_layer: Flag = True
    """Whether attention and MLP are slots of their own."""

    @property
    def weights(self) -> Shares:
        """Shares of the weights by their place."""
        return Shares(self.weights_gpu_percent, self.weights_cpu_percent)

    @property
    def cache(self) -> Shares:
        """Shares of the key-value cache."""
        return Shares(self.cache_gpu_percent, self.cache_cpu_percent)

    @property
    def activations(self) -> Shares:
        """Shares of the hidden states."""
        return Shares(self.activations_gpu_percent, self.activations_cpu_percent)

    @property
    def disk_tier(self) -> str:
        """Storage tier that is its disk; "" if nothing is on disk."""
        return self.disk or ""

    # -- places ---------------------------------------------------------------------------------

    def tunables(self, machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield the tiers of the machine for all weights, shares of weights and cache, 4 bits, and numbers of
        GPU batches."""
        tiers = [one for one in machine.tiers.values() if one.row.place]
        yield Placements(
            now=self._slowest,
            possible=tuple(Placement(one.name) for one in tiers),
            edits=lambda other: self._all_on(machine.tiers[other.weights]),
            refusal=f"FlexGen has no place for it; use {either([one.name for one in tiers])}",
            phrase="{} divided by FlexGen",
            storage=True,
        )
        if not isinstance(plan, FlexGenPlan):
            return
        yield Tunable("tier", self._cache_moves(machine))
        rest = (*_all_in("cache", "cpu"), *_all_in("activations", "cpu"))
        for tier in sorted(tiers, key=lambda one: one.capacity):
            placed, text = self._all_on(tier), f"weights on {tier.name}"
            both = Change("tier", f"{text}, cache and hidden states on dram", (*placed, *rest))
            yield Tunable("tier", (Change("tier", text, placed), both))
        block, now = plan.workload.batch_size, self.gpu_batches
        divisors = [one for one in range(now + 1, block + 1) if block % one == 0]
        yield from memory_tunables("gpu_batches", ("strategy", "gpu_batches"), now, divisors)
        yield Tunable("cache", self._caches(machine))
        yield Tunable("precision", self._precisions())
        yield Tunable("setting", self._faster())

    def _slowest(self) -> Placement:
        """Return the slowest tier of the weights. Raises InputError if it is the disk and ``disk`` is not
        set."""
        if self.weights.disk > 0:
            return Placement(self._disk("weights"))
        return Placement("dram" if self.weights.cpu else "hbm")

    def _all_on(self, tier: Tier) -> tuple[Edit, ...]:
        """Return edits that place all weights on another tier, or on another disk."""
        if self.weights.disk <= 0 and self._slowest().weights == tier.name:
            return ()
        if tier.row.place in ("gpu", "cpu"):
            return _all_in("weights", tier.row.place)
        disk = Edit.at("strategy.disk", tier.name)
        return (disk,) if self.weights.disk > 0 else (*_all_in("weights", "disk"), disk)

    def _cache_moves(self, machine: Machine) -> Iterator[Change]:
        """Yield the cache in other places."""
        for one in self._caches(machine):
            if one.edits and one.same_work:
                yield one._replace(kind="tier", description=f"key-value cache on {one.description}")

    def _precisions(self) -> Iterator[Change]:
        """Yield 4 bits for the weights, and for the cache where FlexGen can compress it."""
        if not self.compress_weight:
            edit = Edit.at("strategy.compress_weight", True)
            yield Change("precision", "weights in 4 bits (compress_weight)", (edit,), quality=FLEXGEN_4BIT)
        if not self.compress_cache and self.cache.place is not None:
            edit = Edit.at("strategy.compress_cache", True)
            yield Change("precision", "cache in 4 bits (compress_cache)", (edit,), quality=FLEXGEN_4BIT)

    def _faster(self) -> Iterator[Change]:
        """Yield other shares of weights on the GPU, attention on the other side, overlap and pinning."""
        gpu, cpu = self.weights
        for percent in (gpu - _STEP, gpu + _STEP):
            if 0 <= percent <= gpu + cpu and cpu + gpu - percent <= 100:
                shares = {"gpu": percent, "cpu": gpu + cpu - percent}
                edits = tuple(
                    Edit.at(f"strategy.weights_{home}_percent", one) for home, one in shares.items()
                )
                yield Change(
                    "setting", f"{percent} % of the weights on the GPU", edits, key=f"weights-gpu-{percent}"
                )
        if self.cache.gpu < 100:
            where = "GPU" if self.cpu_attention else "CPU"
            edit = Edit.at("strategy.cpu_attention", not self.cpu_attention)
            yield Change("setting", f"attention on the {where}", (edit,), key=f"attention-{where.lower()}")
        if not self.overlap:
            edit = Edit.at("strategy.overlap", True)
            yield Change("setting", "copies overlap with kernels (overlap)", (edit,), key="overlap")
        if not self.pin_weight and self.weights.cpu:
            edit = Edit.at("strategy.pin_weight", True)
            yield Change("setting", "pinned weights in host memory (pin_weight)", (edit,), key="pin-weight")

    @property
    def description(self) -> Description:
        """Version of FlexGen whose code is simulated, and the shares of the cache on each tier."""
        cache, disk = self.cache, self.disk or "disk"
        shares = ("hbm", cache.gpu), ("dram", cache.cpu), (disk, cache.disk)
        held = [name if percent == 100 else f"{percent} % {name}" for name, percent in shares if percent]
        stored = "4 bits" if self.compress_cache else ""
        return Description("flexllmgen 0.1.8", ", ".join((*held, *filter(None, (stored,)))), stored)

    def _caches(self, machine: Machine) -> Iterator[Change]:
        """Yield all of the cache in one place, in full and in 4 bits, with attention on either side; and the
        present shares."""
        tiers = machine.tiers
        disks = [self.disk] if self.disk else [name for name, tier in tiers.items() if tier.row.has_files]
        places: list[tuple[Place, str]] = [("gpu", "hbm"), ("cpu", "dram"), *(("disk", one) for one in disks)]
        found = []
        for (home, tier), packed, attends in product(places, (False, True), (False, True)):
            wanted = {
                "cache_gpu_percent": 100 * (home == "gpu"),
                "cache_cpu_percent": 100 * (home == "cpu"),
                "disk": tier if home == "disk" else self.disk,
                "compress_cache": packed,
                "cpu_attention": attends,
            }
            changed = {key: value for key, value in wanted.items() if value != getattr(self, key)}
            edits = tuple(Edit.at(f"strategy.{key}", value) for key, value in changed.items())
            how = (tier, "4 bits" if packed else "", "attention on the CPU" if attends else "")
            if home != "gpu" or not attends:
                text, quality = (
                    ", ".join(filter(None, how)),
                    "" if packed == self.compress_cache else FLEXGEN_4BIT,
                )
                key = "-".join(("cache", tier, *["4-bit"] * packed, *["cpu-attention"] * attends))
                found.append(Change("placement", text, edits, key=key, quality=quality))
        if all(one.edits for one in found):
            yield Change("placement", self.description.cache, key="cache-as-it-is")
        yield from found

    def sizes(self, batch_size: int = 1) -> SizeEdits:
        """Return the edits that make a block of more or fewer GPU batches of the same size, or of one smaller
        GPU batch."""
        unit = batch_size // self.gpu_batches if self.gpu_batches > 1 else 1

        def batch(count: int) -> tuple[Edit, ...]:
            parts, rest = divmod(count, unit)
            batches = parts if self.gpu_batches > 1 and not rest else 1
            divided = () if batches == self.gpu_batches else (Edit.at("strategy.gpu_batches", batches),)
            return (Edit.at("workload.batch_size", count), *divided)

        def divided(count: int) -> tuple[tuple[Edit, ...], ...]:
            if self.gpu_batches == 1 or count <= unit or not count % unit:
                return (batch(count),)
            most = -(-count // unit)  # refused by the plan where it leaves a rest
            parts = (one for one in range(1, most + 1) if not count % one or one == most)
            size = Edit.at("workload.batch_size", count)
            return tuple((size, Edit.at("strategy.gpu_batches", one)) for one in parts)

        return super().sizes(batch_size)._replace(batch=batch, divided=divided, unit=unit)

    # -- the plan -------------------------------------------------------------------------------

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> FlexGenPlan:
        """Apply the strategy. Raises InputError for models and settings that FlexGen refuses."""
        _check_model(model)
        self._check_shares()
        if workload.batch_size % self.gpu_batches:
            text = f"workload.batch_size {workload.batch_size} is not a multiple of {self.gpu_batches}"
            raise InputError.at("strategy.gpu_batches", f"{text}; change one of them")
        return FlexGenPlan(model=model, workload=workload, machine=machine, strategy=self)

    def _check_shares(self) -> None:
        """Raise InputError for percentages that FlexGen refuses."""
        for name in ("weights", "cache", "activations"):
            share: Shares = getattr(self, name)
            if share.disk < 0:
                text = f"{share.gpu} on the GPU and {share.cpu} here are more than 100; lower one of them"
                raise InputError.at(f"strategy.{name}_cpu_percent", text)
            if share.disk:
                self._disk(name)
        if self.activations.place is None:
            text = "hidden states are in one place: set this or activations_cpu_percent to 100, or both 0"
            raise InputError.at("strategy.activations_gpu_percent", text)
        if self.compress_cache and self.cache.place is None:
            text = "FlexGen does not compress a cache in several places; put 100 % of it in one"
            raise InputError.at("strategy.compress_cache", f"{text}, or set it to false")
        stored = max(self.weights.disk, self.cache.disk, self.activations.disk)
        if stored and not self.overlap:
            text = "without overlap FlexGen does not wait for what is read from disk; set it to true"
            raise InputError.at("strategy.overlap", text)

    def _disk(self, what: str) -> str:
        if self.disk is None:
            share: Shares = getattr(self, what)
            text = f"{share.disk} % of the {what} are on disk; name the storage tier that holds them"
            raise InputError.at("strategy.disk", f"{text}, or raise {what}_cpu_percent")
        return self.disk

    def exports(self, plan: Any) -> dict[str, Any]:
        """Return the command that runs the plan, as ``flexgen.sh``."""
        assert isinstance(plan, FlexGenPlan)
        work = plan.workload
        percent = " ".join(
            str(one) for share in (self.weights, self.cache, self.activations) for one in share
        )
        flags = {
            "--compress-weight": self.compress_weight,
            "--compress-cache": self.compress_cache,
            "--cpu-cache-compute": self.cpu_attention,
            "--pin-weight 0": not self.pin_weight,
            "--sep-layer 0": not self.sep_layer,
            "--overlap 0": not self.overlap,
        }
        parts = [
            "python3 -m flexllmgen.flex_opt",
            f"--model facebook/{plan.model.name}",
            f"--prompt-len {work.prompt_length} --gen-len {work.output_length}",
            f"--gpu-batch-size {plan.gpu_batch_size} --num-gpu-batches {self.gpu_batches}",
            f"--percent {percent}",
            *([f"--offload-dir /mnt/{self.disk}"] if self.disk else []),
            *[flag for flag, given in flags.items() if given],
        ]
        return {"flexgen.sh": " \\\n  ".join(parts) + "\n"}


@dataclass(frozen=True)
class FlexGenPlan(InferencePlan):
    """A FlexGenPlan is the plan of FlexGen for one model on one machine."""

    model: ModelShape
    workload: Inference
    machine: Machine
    strategy: FlexGen

    @cached_property
    def slots(self) -> BlockSlots:
        """Slots that a pass goes through."""
        return slots_of(self.model, self.strategy)

    @property
    def modules(self) -> tuple[Module, ...]:
        """Modules of all slots; those of a layer are listed once."""
        return self.slots.modules

    @cached_property
    def block_cache(self) -> BlockCache:
        """Keys and values of one layer and GPU batch."""
        model, length = self.model, self.workload.max_context
        return BlockCache(self.strategy, model.hidden_size, model.head_dim, length)

    @cached_property
    def stage_timings(self) -> tuple[PassTimings]:
        """GPU times of slots and modules for one GPU batch."""
        return (SlotTimings(self.machine, self.model, self.slots, self.block_cache),)

    # -- one GPU batch --------------------------------------------------------------------------

    @property
    def gpu_batch_size(self) -> int:
        """Number of sequences of a GPU batch."""
        return self.workload.batch_size // self.strategy.gpu_batches

    def of_gpu_batch(self, batch: Sequence[Sequences]) -> tuple[Sequences, ...]:
        """Return the sequences of one GPU batch of a block, rounded up."""
        return tuple(one._replace(number=-(-one.number // self.strategy.gpu_batches)) for one in batch)

    def durations(self, forward: ForwardPass) -> tuple[int, ...]:
        """Return the GPU time of each module for a GPU batch [ps], and last the elements of its cache, in
        which decode steps differ wherever the CPU computes attention or copies it."""
        cached = self.block_cache.parts(self.of_gpu_batch(forward.batch))
        return (*super().durations(forward), sum(cached))

    @cached_property
    def _parts(self) -> tuple[tuple[Part, ...], ...]:
        """Slots of a pass, for each GPU batch."""
        options = self.strategy
        return (slot_parts(self.slots, gpu_batches=options.gpu_batches, overlap=options.overlap),)

    def micro_batches(self, forward: ForwardPass) -> tuple[tuple[Sequences, ...]]:
        """Return the sequences of a GPU batch: all of a block go through the same slots."""
        return (self.of_gpu_batch(forward.batch),)

    def weights_hooks(self, _forward: ForwardPass) -> Sequence[Hook]:
        """Return the hooks of slots, which also move cache and hidden states."""
        return slot_hooks(self)

    # -- what is assumed ------------------------------------------------------------------------

    def _extrapolations(self) -> Iterable[str]:
        batch = self.workload.model_copy(update={"batch_size": self.gpu_batch_size})
        return arithmetic_beyond(self.model, batch, self.machine)

    @cached_property
    def cached(self) -> bool:
        """Whether the files on disk are in the page cache after the first pass."""
        if self.strategy.page_cache is not None:
            return self.strategy.page_cache
        row, disk = self.machine.row, self.strategy.disk_tier
        needed = sum(one.size for one in self.held if row(one.tier).is_dram or one.tier == disk)
        return needed <= self.machine.tiers["dram"].capacity

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Warnings about what is assumed of the page cache."""
        files = sum(one.size for one in self.held if one.tier == self.strategy.disk_tier)
        if not files or self.strategy.page_cache is not None:
            return ()
        text = f"{format_bytes(files)} of files on {self.strategy.disk_tier}"
        if self.cached:
            return (f"{text} are read from the page cache in host memory; the first pass is slower",)
        return (f"{text} do not stay in the page cache: every pass reads and writes the drive",)

    # -- memory ---------------------------------------------------------------------------------

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What each tier holds while tokens are generated."""
        return (*self._on_gpu(), *self._in_host(), *self._on_disk())

    def cache_bytes(self, home: int, context: int) -> int:
        """Return the size [B] of keys and values of ``context`` tokens in one home (0: GPU, 1: host memory,
        2: disk), of all layers and GPU batches."""
        batch = (Sequences(self.gpu_batch_size, 1, context),)
        sizes = self.block_cache.sizes(self.block_cache.parts(batch)[home])
        return sum(sizes) * self.slots.layers * self.strategy.gpu_batches

    @property
    def _hidden(self) -> int:
        """Size [B] of the hidden states of the prompts of one GPU batch."""
        work = self.workload
        return self.gpu_batch_size * work.prompt_length * self.model.hidden_size * self.model.dtype_bytes

    def _on_gpu(self) -> tuple[Held, ...]:
        options, model, slots = self.strategy, self.model, self.slots
        cache, most = self.block_cache, self.block_cache.length
        order = (slots.first, *slots.layer, *slots.layer, slots.last)
        around = (*order, slots.first) if options.overlap else order  # of the next token
        pairs = [one.loaded_bytes + two.loaded_bytes for one, two in pairwise(around)]
        expanded = max(model.dtype_bytes * sum(one.numel for one in slot.expanded) for slot in order)
        parts = cache.parts((Sequences(self.gpu_batch_size, 1, most),))
        loaded = 0 if options.cpu_attention else 2 * sum(cache.sizes(parts.offloaded))
        if options.compress_cache and not options.cpu_attention:
            cached, padded = sum(parts), cache.padded(sum(parts))
            loaded += (2 * cached + (padded if padded > cached else 0)) * model.dtype_bytes
        # Keys and values of the prompt, of this GPU batch and of the one whose are being stored.
        prompt = self._hidden // model.dtype_bytes
        written = (2 if options.overlap else 1) * sum(cache.sizes(prompt))
        kept = options.gpu_batches if options.activations.place == "gpu" else 3
        fewer = "lower cache_gpu_percent, batch_size or prompt_length"
        found: tuple[tuple[str, int, str, HeldKind], ...] = (
            ("weights", slots.weight_bytes("hbm"), _FEWER, "weights"),
            ("weights in use and of the next slot", max(pairs), _FEWER, "staging"),
            ("weights written in full", expanded, "", "working"),
            ("key-value cache", self.cache_bytes(0, self.workload.room), fewer, "cache"),
            ("cache in use and new", max(loaded, written), _SPLIT, "staging"),
            ("hidden states", kept * self._hidden, _SPLIT, "activations"),
            ("activations", self._activations(), _SPLIT, "working"),
            ("CUDA context and workspace", self.machine.accelerator.reserved_bytes, "", "working"),
        )
        return tuple(
            Held("hbm", name, size, remedy=why, kind=kind) for name, size, why, kind in found if size
        )

    def _activations(self) -> int:
        """Return the peak of a slot of the prefill [B]: scores, intermediates of the MLP, or logits of all
        positions."""
        model, prompt, size = self.model, self.workload.prompt_length, self.model.dtype_bytes
        tokens = self.gpu_batch_size * prompt
        scores = _SCORES_HELD * tokens * prompt * model.num_attention_heads * size + 4 * self._hidden
        return max(scores, 2 * tokens * model.intermediate_size * size, tokens * model.vocab_size * size)

    def _in_host(self) -> tuple[Held, ...]:
        options, slots, row = self.strategy, self.slots, self.machine.row
        here = [(one, count) for one, count in slots.tensors if row(one.home.tier).is_dram]
        sizes = [size for one, count in here if one.home.pinned for size in one.sizes * count]
        sizes += [self._hidden] * (options.gpu_batches if options.activations.place == "cpu" else 0)
        pageable = sum(count * one.size for one, count in here if not one.home.pinned)
        workspace = 0
        if options.cpu_attention:  # keys and values of one GPU batch in single precision
            batch = (Sequences(self.gpu_batch_size, 1, self.workload.max_context),)
            workspace = 2 * 4 * self.block_cache.padded(sum(self.block_cache.parts(batch)))
        held = self._hidden * options.gpu_batches if options.activations.place == "cpu" else 0
        cache = self.cache_bytes(1, self.workload.room)
        found: tuple[tuple[str, int, bool, HeldKind], ...] = (
            ("weights", slots.weight_bytes("dram") - pageable, True, "weights"),
            ("pageable weights", pageable, False, "weights"),
            ("key-value cache", cache, False, "cache"),
            ("hidden states", held, True, "activations"),
            (ROUNDING, pinned_rounding(sizes), True, "working"),
            ("buffers of the copy threads", _RELAY, True, "staging"),
            ("workspace of attention on the CPU", workspace, False, "working"),
        )
        named = (Held("dram", name, size, pinned=pin, kind=kind) for name, size, pin, kind in found if size)
        return (*named, system_memory(self.machine))

    def _on_disk(self) -> tuple[Held, ...]:
        """Return what one block has on its disk.

        Every position of the cache is written once, by the pass that computes it, and read by all later ones;
        weights are read in every pass; hidden states on disk are written after every slot but the last one,
        and read before every slot but the first one. What the page cache holds is not read from the drive,
        but the operating system writes it there later.
        """
        work, slots, options, batches = self.workload, self.slots, self.strategy, self.strategy.gpu_batches
        passes, moves = 1 + work.decode_steps, slots.layers * len(slots.layer) + 1
        weights, cache = slots.weight_bytes(options.disk_tier), self.cache_bytes(2, work.room)
        there = batches if options.activations.place == "disk" else 0
        positions = self.gpu_batch_size * (work.prompt_length + work.decode_steps)
        hidden = moves * there * positions * self.model.hidden_size * self.model.dtype_bytes

        def read_cache() -> int:
            less = 1 if options.cpu_attention and not options.compress_cache else 0
            contexts = range(work.prompt_length + 1 - less, work.max_context + 1 - less)
            return sum(self.cache_bytes(2, context) for context in contexts)

        found: tuple[tuple[str, int, HeldKind, Callable[[], int], int], ...] = (
            ("weights", weights, "weights", lambda: passes * weights, 0),
            ("key-value cache", cache, "cache", read_cache, cache),
            ("hidden states", there * self._hidden, "activations", lambda: hidden, hidden),
        )
        return tuple(
            Held(options.disk_tier, name, size, kind=kind, traffic=partial(self._transferred, read, written))
            for name, size, kind, read, written in found
            if size
        )

    def _transferred(self, read: Callable[[], int], written: int) -> tuple[int, int]:
        """Return bytes that the disk reads and writes, of which the page cache may hold those that are
        read."""
        return 0 if self.cached else read(), written


# --------------------------------------------------------------------------------------------------
# What FlexGen keeps where: tensors, cache and hidden states on the GPU, in host memory and on disk.
#
# Reference: ``init_weight_list`` of flex_opt.py, and compression.py. Whole tensors are placed, by the middle
# of each in the cumulated sizes of its layer, so that the shares asked for are met roughly. Attention and the
# feed-forward network are layers of their own, and the embedding is kept twice, as it is also the output
# layer.


Place = Literal["disk", "cpu", "gpu"]
"""FlexGen's name of a place; its disk is the storage tier of ``--offload-dir``."""

GROUP = 64
"""Number of elements that share a scale and a minimum."""
_SCALES = 2
"""Number of 16-bit numbers of a group: scale and minimum."""
_ELEMENT = 2
"""[B] of an element in float16, the only data type of FlexGen."""


class Shares(NamedTuple):
    """Shares are the percentages of states on the GPU and in host memory; the rest is on disk."""

    gpu: int
    cpu: int

    @property
    def disk(self) -> int:
        """Percentage of the states on disk."""
        return 100 - self.gpu - self.cpu

    @property
    def place(self) -> Place | None:
        """Where all of it is; None if it is divided."""
        percents: dict[Place, int] = {"gpu": self.gpu, "cpu": self.cpu, "disk": self.disk}
        return next((place for place, percent in percents.items() if percent == 100), None)


def compressed_sizes(groups: int) -> tuple[int, int]:
    """Return the sizes [B] of packed values, and of scales and minima, of groups in 4 bits."""
    return groups * GROUP // 2, groups * _SCALES * _ELEMENT


class PlacedTensor(NamedTuple):
    """A PlacedTensor is a weight with its home."""

    name: str
    shape: tuple[int, ...]
    home: Home
    compressed: bool

    @property
    def numel(self) -> int:
        """Number of elements of the tensor."""
        return prod(self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes [B] of what is stored and moved: the tensor, or packed values and scales, each of which is a
        tensor; rows are rounded up to whole groups."""
        if not self.compressed:
            return (self.numel * _ELEMENT,)
        return compressed_sizes(-(-self.shape[0] // GROUP) * prod(self.shape[1:]))

    @property
    def size(self) -> int:
        """Size as it is stored [B]."""
        return sum(self.sizes)


class BlockSlot(NamedTuple):
    """A BlockSlot is one of FlexGen's layers: an embedding, attention, a feed-forward network, or (without
    ``sep_layer``) both."""

    name: str
    tensors: tuple[PlacedTensor, ...]
    modules: tuple[Module, ...]
    """Modules of the model that it computes."""
    attends: bool = False

    @property
    def module(self) -> Module:
        """The slot as one module, as which FlexGen calls it."""
        return Module(self.name, "container")

    @property
    def loaded(self) -> tuple[PlacedTensor, ...]:
        """Tensors that are brought to the GPU for each use."""
        return tuple(one for one in self.tensors if one.home.tier != HBM.tier)

    @property
    def loaded_bytes(self) -> int:
        """Size of these [B]."""
        return sum(one.size for one in self.loaded)

    @property
    def expanded(self) -> tuple[PlacedTensor, ...]:
        """Tensors that the GPU writes in full before their use."""
        return tuple(one for one in self.tensors if one.compressed)


class BlockSlots(NamedTuple):
    """BlockSlots are FlexGen's layers in the order of a pass."""

    first: BlockSlot
    layer: tuple[BlockSlot, ...]
    """BlockSlots of one layer of the model; all its layers are alike."""
    last: BlockSlot
    layers: int
    """Number of layers of the model."""

    @property
    def kinds(self) -> tuple[tuple[BlockSlot, int], ...]:
        """The slots that differ, each with its number."""
        return ((self.first, 1), *((one, self.layers) for one in self.layer), (self.last, 1))

    @property
    def modules(self) -> tuple[Module, ...]:
        """Modules of all slots; those of a layer are listed once."""
        return tuple(module for slot, _ in self.kinds for module in slot.modules)

    @property
    def tensors(self) -> tuple[tuple[PlacedTensor, int], ...]:
        """The tensors of all slots, each with its number."""
        return tuple((tensor, count) for slot, count in self.kinds for tensor in slot.tensors)

    def weight_bytes(self, tier: str) -> int:
        """Return the size of the weights on a tier [B]."""
        return sum(count * one.size for one, count in self.tensors if one.home.tier == tier)


def placed(specs: Sequence[tuple[str, tuple[int, ...]]], options: FlexGen) -> tuple[PlacedTensor, ...]:
    """Return the tensors of a layer with their homes, as ``init_weight_list`` chooses them.

    The middle of each tensor in the cumulated number of elements decides: up to the share of the disk it is
    on disk, then in host memory, then on the GPU.
    """
    sizes = [prod(shape) for _, shape in specs]
    ends, total = list(accumulate(sizes)), sum(sizes)
    found = []
    for (name, shape), size, end in zip(specs, sizes, ends, strict=True):
        middle = 100 * (end - size / 2) / total
        disk = options.weights.disk
        matrix, home = len(shape) > 1, HBM
        if middle < disk:
            home = Home(options.disk_tier, mapped=True)
        elif middle < disk + options.weights.cpu:  # vectors are always pinned
            home = Home("dram", pinned=options.pin_weight or not matrix)
        compressed = matrix and options.compress_weight
        found.append(PlacedTensor(name, shape, home, compressed))
    return tuple(found)


def slots_of(model: ModelShape, options: FlexGen) -> BlockSlots:
    """Return the slots of a pass through an OPT model, with their tensors and modules."""
    hidden, wide, rows = model.hidden_size, model.intermediate_size, model.vocab_size
    positions = next(
        one.parameters[0].numel // hidden
        for one in model.modules_before
        if one.name.endswith("embed_positions")
    )
    norm = [("layer_norm.weight", (hidden,)), ("layer_norm.bias", (hidden,))]
    square = [
        part
        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
        for part in ((f"{name}.weight", (hidden, hidden)), (f"{name}.bias", (hidden,)))
    ]
    forward = [
        ("fc1.weight", (wide, hidden)),
        ("fc1.bias", (wide,)),
        ("fc2.weight", (hidden, wide)),
        ("fc2.bias", (hidden,)),
    ]
    (layer, _) = model.kinds[0]
    at = next(number for number, one in enumerate(layer) if one.name == "final_layer_norm")
    # The residuals of the two halves are in the first module, that of the layer itself.
    block, attention, network = layer[0], layer[1:at], layer[at:]
    half = block._replace(in_features=block.in_features // 2, out_features=block.out_features // 2)
    attend = BlockSlot("attention", placed([*square, *norm], options), (half, *attention), attends=True)
    feed = BlockSlot("MLP", placed([*forward, *norm], options), (half, *network))
    halves: tuple[BlockSlot, ...] = (attend, feed)
    if not options.sep_layer:
        halves = (
            BlockSlot("layer", attend.tensors + feed.tensors, attend.modules + feed.modules, attends=True),
        )
    tables = [("embed_tokens.weight", (rows, hidden)), ("embed_positions.weight", (positions, hidden))]
    head = [*norm, ("lm_head.weight", (rows, hidden))]
    # Logits of all positions are computed, not only those of the last one.
    after = tuple(one._replace(last_only=False) for one in model.modules_after)
    first = BlockSlot("input embedding", placed(tables, options), model.modules_before)
    return BlockSlots(
        first, halves, BlockSlot("output embedding", placed(head, options), after), model.num_hidden_layers
    )


class CacheParts(NamedTuple):
    """CacheParts are the elements of keys, and of values, of one layer and GPU batch, by their home."""

    gpu: int
    cpu: int
    disk: int

    @property
    def offloaded(self) -> int:
        """Elements that are not on the GPU."""
        return self.cpu + self.disk


class BlockCache(NamedTuple):
    """A BlockCache is the key-value cache of one layer and GPU batch."""

    options: FlexGen
    width: int
    """Number of elements of the keys, or of the values, of a token."""
    head: int
    """Number of these of a head."""
    length: int
    """Most positions of a sequence."""

    def sequences(self, number: int) -> tuple[int, int, int]:
        """Return for ``number`` sequences those whose cache is on the GPU, in host memory and on disk.

        A divided cache is cut at whole sequences, rounded down; the last place gets the rest
        (``TorchMixedDevice.init_cache_one_gpu_batch``).
        """
        share = self.options.cache
        gpu = number * share.gpu // 100
        cpu = number - gpu if share.disk == 0 else number * share.cpu // 100
        return gpu, cpu, number - gpu - cpu

    def attended_on_gpu(self, number: int) -> int:
        """Return to how many sequences the GPU attends in a decode step: without attention on the CPU to all,
        otherwise to those whose cache it has, if others have it elsewhere."""
        if not self.options.cpu_attention:
            return number
        gpu, cpu, disk = self.sequences(number)
        return gpu if cpu + disk else 0

    def parts(self, batch: Sequence[Sequences], *, less: int = 0) -> CacheParts:
        """Return the elements of keys, or of values, without the last ``less`` positions."""
        parts = [0, 0, 0]
        for one in batch:
            each = (one.context - less) * self.width
            numbers = self.sequences(one.number)
            parts = [total + number * each for total, number in zip(parts, numbers, strict=True)]
        return CacheParts(*parts)

    def padded(self, elements: int) -> int:
        """Return the number of ``elements`` of keys, or of values, with what fills each head up to whole
        groups in 4 bits (``TorchCompressedDevice.allocate``, ``group_dim`` 2)."""
        if not self.options.compress_cache:
            return elements
        return elements * (-(-self.head // GROUP) * GROUP) // self.head

    def sizes(self, elements: int) -> tuple[int, ...]:
        """Return the sizes [B] of the tensors that hold ``elements`` of keys and as many of values."""
        if not elements:
            return ()
        if not self.options.compress_cache:
            return (elements * _ELEMENT,) * 2
        return compressed_sizes(self.padded(elements) // GROUP) * 2


# --------------------------------------------------------------------------------------------------
# GPU times of FlexGen's slots, with kernels that store tensors in 4 bits and write them in full again.
#
# Reference: FMInference/FlexLLMGen@004ffef, ``flexllmgen/pytorch_backend.py`` (``mha``, ``mha_gen``, ``mlp``,
# ``opt_output_embed``) and ``compression.py``. PyTorch vectorizes only those kernels for 4 bits whose
# operands have the same layout. The others compute an address for each element, which takes longer than the
# memory on an H100, and as long if all is in the L2 cache (docs/measurements/gpu.md, FlexGen's 4 bits). Their
# time is therefore stated in additions of a bias in place, whose rate is an accelerator's ``strided_rate``.


_SCORE_BYTES = 12
"""[B] moved for each score: product written, masked and softmax (each read and written), times values
(read), all in 16 bit."""
_BIAS_BYTES = 4
"""[B] that the addition of a bias in place reads and writes for each element in 16 bit."""


class Kernel(NamedTuple):
    """A Kernel is an operation of PyTorch on a tensor, with its work per element of that tensor in full
    width."""

    traffic: float
    """HBM traffic [B], counted."""
    additions: float = 0.0
    """Its time on an H100 as a number of additions of a bias; 0 if it is vectorized."""


Kernels = tuple[Kernel, ...]

_SHIFT_AND_MASK: Kernels = (Kernel(1.0), Kernel(1.0))
"""Of packed bytes, each read and written."""

EXPAND_WEIGHT: Kernels = (
    *_SHIFT_AND_MASK,
    Kernel(1.5, 0.511),  # cast to even rows
    Kernel(1.5, 0.511),  # cast to odd rows
    Kernel(4.0, 1.472),  # divide by the scale
    Kernel(4.0, 1.104),  # add the minimum
)
"""``decompress`` of weights, whose groups are along rows."""

EXPAND_CACHE: Kernels = (
    *_SHIFT_AND_MASK,
    Kernel(2.5, 0.607),  # cast to even elements: all sectors are written
    Kernel(2.5, 0.607),  # cast to odd elements
    Kernel(4.0, 1.163),
    Kernel(4.0, 0.983),
)
"""``decompress`` of keys or values, whose groups are along the innermost dimension."""

_CLAMP_AND_ROUND: Kernels = (Kernel(4.0), Kernel(4.0))
_SMALL: Kernels = (Kernel(0.0),) * 4
"""Range of each group, its quotient, and scales and minima in one tensor; and one for the tensor's copy."""

SQUEEZE_KEYS: Kernels = (
    Kernel(2.0, 9.456),  # minimum
    Kernel(2.0, 9.456),  # maximum
    Kernel(4.0, 1.538),  # subtract the minimum
    Kernel(4.0, 1.534),  # multiply by the scale
    *_CLAMP_AND_ROUND,
    Kernel(3.0, 0.891),  # cast to bytes
    Kernel(1.0, 0.381),  # shift every other
    Kernel(1.5, 0.438),  # or with the others
    Kernel(1.0, 1.647),  # in the order of the cache
    *_SMALL,
)
"""``compress`` of the keys of a prompt, which are transposed."""

SQUEEZE_VALUES: Kernels = (
    Kernel(2.0, 2.411),
    Kernel(2.0, 2.409),
    Kernel(4.0, 1.039),
    Kernel(4.0, 1.176),
    *_CLAMP_AND_ROUND,
    Kernel(3.0, 0.891),
    Kernel(1.0, 0.380),
    Kernel(1.5, 0.428),
    Kernel(1.0, 0.402),
    *_SMALL,
)
"""The same of values, and of the keys of a new token."""

PAD: Kernels = (Kernel(4.0),)
"""Copy of keys or values whose heads are filled up to whole groups (``torch.cat``), or no longer are
(``contiguous``)."""


def kernels_s(kernels: Kernels, numel: int, gpu: Accelerator) -> float:
    """Return the time [s] of kernels on a tensor of ``numel`` elements, one after the other: each takes the
    longer of the times of its traffic and its addresses."""
    addition = _BIAS_BYTES / gpu.strided_rate.value if gpu.strided_rate else 0.0
    return sum(
        max(one.traffic / gpu.hbm_rate, one.additions * addition) * numel + gpu.kernel_latency_s
        for one in kernels
    )


def is_prefill(batch: tuple[Sequences, ...]) -> bool:
    """Return whether there is no cache yet."""
    return all(one.new_tokens == one.context for one in batch)


class SlotTiming(Timing):
    """A SlotTiming is the timing of one GPU batch in slots, and in their modules: FlexGen's attention, whose
    speed was not measured, is in place of transformers'."""

    _cached = False

    def __init__(
        self,
        machine: Machine,
        model: ModelShape,
        batch: tuple[Sequences, ...],
        block: tuple[BlockSlots, BlockCache],
    ) -> None:
        super().__init__(machine=machine, model=model, batch=batch, zero3=False)
        slots, self._kept = block
        self._slots = {slot.module: slot for slot, _ in slots.kinds}

    def compute(self, module: Module) -> int:
        """Return the GPU time [ps] of a slot or of a module."""
        if module not in self._slots:
            return super().compute(module)
        if module not in self._seen:
            self._seen[module] = self._slot(self._slots[module])
        return self._seen[module]

    def _slot(self, slot: BlockSlot) -> int:
        """Return the GPU time [ps] of a slot, with weights and cache that are compressed or expanded."""
        cache, batch = self._kept, self._batch
        options = cache.options
        work = [(EXPAND_WEIGHT, one.numel) for one in slot.expanded]
        if slot.attends and options.compress_cache:
            new = sum(one.number * one.new_tokens for one in batch) * cache.width
            prefill, padded = is_prefill(batch), cache.padded(new)
            work += [(SQUEEZE_KEYS if prefill else SQUEEZE_VALUES, padded), (SQUEEZE_VALUES, padded)]
            work += [(PAD, new)] * 2 if padded > new else []
            if not prefill and not options.cpu_attention:
                # What is on the GPU is expanded with the room for all tokens.
                least = cache.length if options.cache.place == "gpu" else 0
                held = [one._replace(context=max(one.context, least)) for one in batch]
                cached = sum(cache.parts(held))
                padded = cache.padded(cached)
                work += [(EXPAND_CACHE, padded)] * 2
                work += [(PAD, cached)] * 2 if padded > cached else []
        seconds = sum(kernels_s(kernels, numel, self.machine.accelerator) for kernels, numel in work)
        return sum(map(self.compute, slot.modules)) + picoseconds(seconds)

    def cost(self, module: Module) -> ModuleCost:
        """Return FLOP and HBM bytes of one call of ``module``; attention computes all scores and masks them,
        and does not copy the cache."""
        if not module.attends:
            return super().cost(module)
        total = ModuleCost(0.0, 0.0)
        for one in self._batch:
            total = ModuleCost(*map(sum, zip(total, self._attention(one), strict=True)))
        return total

    def _attention(self, one: Sequences) -> ModuleCost:
        model, (number, new, context, _) = self._model, one
        hidden, size = model.hidden_size, model.dtype_bytes
        tokens = number * new
        # Queries are scaled; queries, keys, values and the result are copied to other layouts.
        copied = 10 * tokens * hidden * size
        number = number if new == context else self._kept.attended_on_gpu(number)
        scores = number * model.num_attention_heads * new * context
        read = 2 * number * (new + context) * hidden * size
        return ModuleCost(4.0 * scores * model.head_dim, float(copied + read + _SCORE_BYTES * scores))

    def _attention_s(self, module: Module, cost: ModuleCost, *, backward: bool) -> float | None:  # noqa: ARG002
        return None


class SlotTimings(PassTimings):
    """SlotTimings are the durations of slots and modules in any pass."""

    def __init__(self, machine: Machine, model: ModelShape, slots: BlockSlots, cache: BlockCache) -> None:
        super().__init__(machine=machine, model=model, modules=slots.modules, zero3=False)
        self._block = slots, cache

    def timing(self, batch: tuple[Sequences, ...]) -> SlotTiming:
        """Return the timing of one GPU batch."""
        return SlotTiming(self._machine, self._model, batch, self._block)


# --------------------------------------------------------------------------------------------------
# Hooks of FlexGen: a block of GPU batches goes through one slot after the other.
#
# Reference: FMInference/FlexLLMGen@004ffef, ``flexllmgen/flex_opt.py`` (``generation_loop_normal``,
# ``generation_loop_overlap_single_batch``, ``generation_loop_overlap_multi_batch``) and
# ``pytorch_backend.py`` (``general_copy``, ``copy_worker_func``, ``mha_gen``).
#
# A slot is a layer of FlexGen, and a call is a slot of one GPU batch. With overlap the host thread begins the
# copy of the next slot's weights (only with the first batch), of the next cache, and of the last and the next
# hidden states; it launches the kernels, stores the cache of the batch before, and then waits for the whole
# GPU and all copy threads. So a call takes as long as the slowest of them, and weights that take longer than
# one GPU batch delay it although the link is free during the others. Hidden states are copied on the stream
# of the kernels. Without overlap everything is on that stream, for the call itself, and the host awaits it
# only where it reads new tokens.
#
# Memory that is not pinned is copied to a pinned tensor by the host thread itself before its copy to the GPU
# begins. What goes from the GPU to such memory in a prefill, and all that is read from or written to disk, is
# given to four copy threads, each with a pinned buffer as relay. Pages of the cache are touched for the first
# time in the prefill, so that the operating system clears them then. Files are mapped (``np.memmap``); if the
# page cache does not hold them, writes are taken to be as fast as the drive. Attention on the CPU runs in the
# host thread, and so does the cast of keys and values to single precision before it.


_THREADS = 4
_COPY_CALL = 2
"""Number of PyTorch operations of a copy: the new tensor, and the copy itself."""
_SYNC_CALL = 2
"""Number of waits at the end of a call: for the queue of the copy threads, and for the GPU."""
_EXPAND_CALL, _SQUEEZE_CALL, _MASK_CALL = 14, 18, 3
"""Numbers of PyTorch operations that write a tensor in full, that compress one, and that extend a mask."""
_CPU_EXPANDED = 23
"""[B] moved for each element that ``decompress`` writes in single precision on the CPU: two shifts or masks
of packed bytes (1 each), two copies of the halves into the result (2.5 each), a division and an addition in
place (8 each)."""
_CPU_CUT = 8
"""[B] moved for each element that is copied without the padding of its head (``contiguous``)."""


_OPERATIONS = {
    "input embedding": (10, 10),
    "attention": (36, 35),
    "MLP": (5, 5),
    "layer": (41, 40),
    "output embedding": (5, 5),
}
"""PyTorch operations of a call in a prefill and in a decode step, counted in FlexGen's code."""


class SlotCall(NamedTuple):
    """A SlotCall is a slot of one GPU batch, with the slots of the calls around it."""

    slot: BlockSlot
    before: BlockSlot | None
    following: BlockSlot | None
    weights: BlockSlot | None
    """Slot whose weights come with this call."""
    last: bool
    """Whether it is the last GPU batch of the slot."""


def slot_parts(slots: BlockSlots, *, gpu_batches: int, overlap: bool) -> tuple[Part, ...]:
    """Return the parts of a pass: layers with the same slots around them are the same calls."""
    order = (None, slots.first, *slots.layer * slots.layers, slots.last, None)
    known: dict[tuple[int, ...], tuple[Call, ...]] = {}

    def part(name: str, first: int, width: int = 1, layer: int = -1) -> Part:
        around = order[first - 1 : first + width + 1]
        key = tuple(map(id, around))
        if key not in known:
            known[key] = tuple(calls(around))
        return Part(name, known[key], layer)

    def calls(around: Sequence[BlockSlot | None]) -> Iterator[Call]:
        for before, slot, following in zip(around, around[1:], around[2:], strict=False):
            assert slot is not None
            module = slot.module
            ahead = following or slots.first  # after the last slot come the weights of the first
            for batch in range(gpu_batches):
                first, last = batch == 0, batch == gpu_batches - 1
                neighbours = before if first else slot, following if last else slot
                weights = (ahead if overlap else slot) if first else None
                yield Call(module, facts=SlotCall(slot, *neighbours, weights, last))

    width = len(slots.layer)
    layers = [part("layer", 2 + number * width, width, number) for number in range(slots.layers)]
    return (part(slots.first.name, 1), *layers, part(slots.last.name, len(order) - 2))


def _of(call: Call) -> SlotCall:
    assert isinstance(call.facts, SlotCall)
    return call.facts


# -- work of the host thread, and copies that it begins ---------------------------------------------


def _copy(
    stream: int,
    sizes: Sequence[int],
    out: PassWriter,
    *,
    to_device: bool,
    label: str,
    pinned: bool = True,
    cache: str = "",
) -> None:
    """Begin copies of ``sizes`` [B] between host memory and the GPU, one after the other on a stream;
    ``cache`` as in ``copies``."""
    route, latency = out.copies(sizes, to_device=to_device, pinned=pinned, cache=cache)
    out.flush()
    after = out.so_far(HOST)
    out.add("copy", stream, fixed=latency, size=sum(sizes), route=route, label=label, after=after)


def _copy_within_gpu(stream: int, size: int, out: PassWriter) -> None:
    """Begin to copy ``size`` [B] of the cache within HBM."""
    out.flush()
    fixed = out.now.timing.hbm_copy(size)
    out.add("copy", stream, fixed=fixed, label="cache", after=out.so_far(HOST))


def _on_cpu(label: str, traffic: int, out: PassWriter, *, cache: str = "") -> None:
    """Let the host thread, and the other threads of PyTorch's loops, work on host memory."""
    out.flush()
    out.add("cpu", HOST, size=traffic, route=_loops(traffic, out, cache=cache), label=label)


def _loops(
    traffic: int,
    out: PassWriter,
    *,
    new: int = 0,
    share: float = 1.0,
    kind: CauseKind = "tensor-loops",
    cache: str,
) -> int:
    """Return the route of PyTorch's loops over ``traffic`` [B] on all cores (``loops_rate``)."""
    rate = loops_rate(out.machine.host, traffic=traffic, new=new, share=share)
    return out.cpu_work(Cause(kind).of_cache(cache), rate)


# -- hooks ------------------------------------------------------------------------------------------


class _SlotHook(Hook):
    """A _SlotHook is a hook around the slots of a block."""

    def __init__(self, plan: FlexGenPlan) -> None:
        self._plan, self._options = plan, plan.strategy
        self._operation = plan.machine.host.eager_costs.operation.value

    state = Hook.of_modules

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Note the GPU batch, which is the same in each call."""
        self._batch, self._prefill = stage.batch, is_prefill(stage.batch)
        self._new = stage.tokens * self._plan.model.hidden_size

    def _calls(self, number: int, out: PassWriter) -> None:
        """Let the host thread call so many PyTorch operations."""
        out.spend(number * self._operation)

    def _to_gpu(self, stream: int, size: int, out: PassWriter, *, label: str, cache: str = "") -> None:
        """Copy pageable memory to a pinned tensor in the host thread, and that to the GPU."""
        self._calls(_COPY_CALL + 1, out)
        _on_cpu(f"pinning {label}", 2 * size, out, cache=cache)
        _copy(stream, [size], out, to_device=True, label=label, cache=cache)


class CopyJob(NamedTuple):
    """A CopyJob is a copy that a copy thread does step by step; 0 stands for a step that it does not have."""

    label: str
    read: int = 0
    """Size [B] that it reads from a file."""
    from_gpu: int = 0
    traffic: int = 0
    """Memory traffic of the CPU [B]."""
    new: int = 0
    """Size of memory that is touched for the first time [B]."""
    to_gpu: int = 0
    written: int = 0
    cache: str = ""
    """Tier of the cache, if it is keys and values that are copied."""


class CopyThreads(_SlotHook):
    """Copy threads take one job after the other; what it carries is the number of the next thread."""

    streams = tuple(f"copy thread {one}" for one in range(_THREADS))
    carry: int = 0

    def submit(self, job: CopyJob, out: PassWriter) -> None:
        """Give a job to the next copy thread."""
        out.flush()
        thread = self.first + self.carry
        self.carry = (self.carry + 1) % _THREADS
        begun = False

        def step(kind: OpKind, size: int, route: int, latency: int = 0) -> None:
            nonlocal begun
            after = () if begun else out.so_far(HOST)
            out.add(kind, thread, fixed=latency, size=size, route=route, label=job.label, after=after)
            begun = True

        tier, stored = self._options.disk_tier, not self._plan.cached
        link = partial(out.copies, pinned=True, cache=job.cache)
        if job.from_gpu:
            step("copy", job.from_gpu, *link([job.from_gpu], to_device=False))
        if job.read and stored:  # which copies to the buffer
            step("read", job.read, *mapped_read(out, tier, job.read, traffic=job.traffic, cache=job.cache))
        else:
            step("cpu", job.traffic, _loops(job.traffic, out, new=job.new, cache=job.cache))
        if job.to_gpu:
            step("copy", job.to_gpu, *link([job.to_gpu], to_device=True))
        if job.written and stored:  # to a mapped file
            path, hops = out.way((tier, True), partial(out.machine.storage_write, tier))
            cause, rate = Cause("write", tier).of_cache(job.cache), path.curve.rate(job.written)
            step(
                "write",
                job.written,
                out.builder.route(cause=cause, hops=hops, cap=rate),
                picoseconds(path.latency),
            )


class SlotEnds(_SlotHook):
    """With overlap a call ends when the host has waited for all streams and copy threads."""

    def __init__(self, plan: FlexGenPlan, threads: CopyThreads) -> None:
        super().__init__(plan)
        self._threads = threads

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Extend the mask of each GPU batch."""
        self._calls(self._options.gpu_batches * _MASK_CALL, out)

    def after(self, call: Call, out: PassWriter) -> None:
        """Wait, without overlap only for new tokens."""
        if self._options.overlap:
            self._synchronize(out)
        elif _of(call).slot is self._plan.slots.last:
            out.host_waits(COMPUTE)
        if _of(call).last:
            out.flush()

    def end(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Wait for all streams and copy threads."""
        self._synchronize(out)

    def finish(self, out: PassWriter) -> bool:  # noqa: ARG002
        """Add nothing, as the pass has ended."""
        return True

    def _synchronize(self, out: PassWriter) -> None:
        for stream in range(COMPUTE, out.width):
            out.host_waits(stream)
        self._calls(_SYNC_CALL, out)
        self._threads.carry = 0


class _MovedStates(_SlotHook):
    """A _MovedStates hook moves states between the GPU and their home, by copy threads where it has to."""

    def __init__(self, plan: FlexGenPlan, threads: CopyThreads) -> None:
        super().__init__(plan)
        self._submit = threads.submit

    def _on(self, name: str) -> int:
        """Return the number of one of its streams; without overlap that of the kernels."""
        return self.stream(name) if self._options.overlap else COMPUTE


class SlotWeights(_MovedStates):
    """Weights of a slot come to the GPU with the first GPU batch of the slot before, or of its own."""

    streams = ("load weights",)

    def before(self, call: Call, out: PassWriter) -> None:
        """Bring the weights of a slot to the GPU."""
        slot, pinned = _of(call).weights, list[int]()
        stream = self._on("load weights")
        for tensor in slot.loaded if slot is not None else ():
            if tensor.home.pinned:
                pinned += tensor.sizes
            elif not tensor.home.mapped:
                for size in tensor.sizes:
                    self._to_gpu(stream, size, out, label="weights")
            else:
                self._calls(_COPY_CALL * len(tensor.sizes), out)
                for size in tensor.sizes:
                    self._submit(CopyJob("weights", read=size, traffic=2 * size, to_gpu=size), out)
        if pinned:
            self._calls(_COPY_CALL * len(pinned), out)
            _copy(stream, pinned, out, to_device=True, label="weights")


class SlotCache(_MovedStates):
    """Keys and values come before a call that attends to them, and new ones are stored after it: with overlap
    beside the call before and the one after it."""

    streams = ("load cache", "store cache")

    def before(self, call: Call, out: PassWriter) -> None:
        """Bring the cache of a GPU batch to where attention is computed; a prefill has none."""
        loaded = _of(call).following if self._options.overlap else _of(call).slot
        if self._prefill or loaded is None or not loaded.attends:
            return
        self._calls(2 * _COPY_CALL, out)
        if self._options.cpu_attention:
            self._load_for_cpu(out)
            return
        stream, cache, disk = self._on("load cache"), self._plan.block_cache, self._options.disk_tier
        parts = cache.parts(self._batch)
        if parts.gpu and parts.offloaded:
            _copy_within_gpu(stream, sum(cache.sizes(parts.gpu)), out)
        for size in cache.sizes(parts.cpu):
            self._to_gpu(stream, size, out, label="cache", cache="dram")
        for size in cache.sizes(parts.disk):
            self._submit(CopyJob("cache", read=size, traffic=2 * size, to_gpu=size, cache=disk), out)

    def _load_for_cpu(self, out: PassWriter) -> None:
        """Cast keys and values to single precision in host memory, or only bring them there if they are
        compressed; what is on the GPU is attended to there if the cache is divided."""
        packed, cache, disk = self._options.compress_cache, self._plan.block_cache, self._options.disk_tier
        parts = cache.parts(self._batch, less=0 if packed else 1)
        cast = 1 if packed else SINGLE // self._plan.model.dtype_bytes
        if parts.gpu and not parts.offloaded:
            for size in cache.sizes(parts.gpu):
                self._submit(CopyJob("cache", from_gpu=size, traffic=(1 + cast) * size, cache="hbm"), out)
        if not packed:
            for size in cache.sizes(parts.cpu):
                _on_cpu("casting the cache", (1 + cast) * size, out, cache="dram")
        for size in cache.sizes(parts.disk):
            self._submit(CopyJob("cache", read=size, traffic=(1 + cast) * size, cache=disk), out)

    def after(self, call: Call, out: PassWriter) -> None:
        """Store keys and values of the tokens that a call has processed."""
        stored = _of(call).before if self._options.overlap else _of(call).slot
        if stored is None or not stored.attends:
            return
        self._calls(2 * _COPY_CALL, out)
        stream, cache, tier = self._on("store cache"), self._plan.block_cache, self._options.disk_tier
        parts = cache.parts(self._batch)
        share = self._new / sum(parts)
        gpu, cpu, disk = (round(share * one) for one in parts)
        if gpu and self._prefill:
            _copy_within_gpu(stream, sum(cache.sizes(gpu)), out)
        if cpu and self._prefill:
            for size in cache.sizes(cpu):
                job = CopyJob("cache", from_gpu=size, traffic=2 * size, new=size, cache="dram")
                self._submit(job, out)
        elif cpu:
            sizes = cache.sizes(cpu)
            _copy(stream, sizes, out, to_device=False, label="cache", pinned=False, cache="dram")
            out.host_waits(stream)
        for size in cache.sizes(disk):
            self._submit(CopyJob("cache", from_gpu=size, traffic=2 * size, written=size, cache=tier), out)


class _HiddenStates(_MovedStates):
    """A _HiddenStates hook moves hidden states on the stream of the kernels; in one of several GPU batches
    with overlap, for the call before or the one after it."""

    def __init__(self, plan: FlexGenPlan, threads: CopyThreads) -> None:
        super().__init__(plan, threads)
        self._apart = plan.strategy.overlap and plan.strategy.gpu_batches > 1

    def _move(self, out: PassWriter, *, to_device: bool) -> None:
        size = self._new * self._plan.model.dtype_bytes
        if self._options.activations.place == "gpu":
            return
        self._calls(_COPY_CALL, out)
        if self._options.activations.place == "cpu":
            _copy(COMPUTE, [size], out, to_device=to_device, label="hidden states")
        elif to_device:
            self._submit(CopyJob("hidden states", read=size, traffic=2 * size, to_gpu=size), out)
        else:
            self._submit(CopyJob("hidden states", from_gpu=size, traffic=2 * size, written=size), out)


class LoadedStates(_HiddenStates):
    """Hidden states come to the GPU for each slot but the first, which gets tokens."""

    def before(self, call: Call, out: PassWriter) -> None:
        """Bring the hidden states of a call to the GPU."""
        loaded = _of(call).following if self._apart else _of(call).slot
        if loaded not in (None, self._plan.slots.first):
            self._move(out, to_device=True)


class StoredStates(_HiddenStates):
    """Hidden states that a slot has computed go to their home; the last slot yields tokens."""

    def before(self, call: Call, out: PassWriter) -> None:
        """Store those of the call before."""
        if self._apart:
            self._store(_of(call).before, out)

    def after(self, call: Call, out: PassWriter) -> None:
        """Store those of this call."""
        if not self._apart:
            self._store(_of(call).slot, out)

    def _store(self, slot: BlockSlot | None, out: PassWriter) -> None:
        if slot not in (None, self._plan.slots.last):
            self._move(out, to_device=False)


class SlotKernels(_SlotHook):
    """Kernels of a slot begin with the first of its PyTorch operations, while the host launches the others;
    the CPU may attend between the projections on the GPU."""

    def launch(self, call: Call, out: PassWriter) -> bool:  # noqa: ARG002
        """Launch the first kernel of a slot."""
        self._calls(1, out)
        out.flush()
        return True

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:
        """Let the GPU work, and launch the rest."""
        slot = _of(call).slot
        calls = _OPERATIONS[slot.name][not self._prefill] + _EXPAND_CALL * len(slot.expanded)
        if slot.attends and self._options.compress_cache:
            calls += 2 * (_SQUEEZE_CALL + (0 if self._prefill else _EXPAND_CALL))
        if slot.attends and self._options.cpu_attention and not self._prefill:
            cut = next(n for n, one in enumerate(slot.modules) if one.name == "self_attn.out_proj")
            last = sum(map(out.now.timing.compute, slot.modules[cut:]))
            out.add("compute", COMPUTE, fixed=duration - last, after=after)
            self._calls(calls // 2 - 1, out)
            self._attend(out)
            self.launch(call, out)
            duration, calls, after = last, calls - calls // 2, out.so_far(HOST)
        out.add("compute", COMPUTE, fixed=duration, after=after)
        self._calls(calls - 1, out)
        return True

    def _attend(self, out: PassWriter) -> None:
        """Compute attention in the host thread."""
        out.host_waits(COMPUTE)
        vector = self._new * SINGLE  # queries, new keys, new values; and the result
        _copy(COMPUTE, [vector] * 3, out, to_device=False, label="queries", pinned=False)
        out.host_waits(COMPUTE)
        cache = self._plan.block_cache
        parts = cache.parts(self._batch)
        elements = parts.offloaded or parts.gpu
        tier = self._options.disk_tier if parts.disk else "dram" if parts.cpu else "hbm"
        out.flush()
        if self._options.compress_cache:
            padded = cache.padded(elements)
            copied = _CPU_CUT * elements if padded > elements else 0
            _on_cpu("expanding the cache", 2 * (_CPU_EXPANDED * padded + copied), out, cache=tier)
        traffic = 2 * SINGLE * elements
        route = _loops(traffic, out, share=ONE_QUERY, kind="cpu-attention", cache=tier)
        out.add("cpu", HOST, size=traffic, route=route, label="attention")
        _copy(COMPUTE, [vector], out, to_device=True, label="result of attention", pinned=False)
        out.host_waits(COMPUTE)


def slot_hooks(plan: FlexGenPlan) -> tuple[Hook, ...]:
    """Return the hooks of a pass in the order of FlexGen's loop; the one for a block of one GPU batch stores
    the cache before hidden states."""
    threads = CopyThreads(plan)
    cache, stored = SlotCache(plan, threads), StoredStates(plan, threads)
    undivided = plan.strategy.overlap and plan.strategy.gpu_batches == 1
    return (
        SlotEnds(plan, threads),
        SlotWeights(plan, threads),
        *((stored, cache) if undivided else (cache, stored)),
        LoadedStates(plan, threads),
        SlotKernels(plan),
        threads,
    )


# --------------------------------------------------------------------------------------------------
# Checks of the keys of FlexGen, and what is said of them.


_STEP = 20
"""Percentage points by which ``advise`` moves weights between GPU and host memory."""


def _all_in(what: str, home: Place) -> tuple[Edit, ...]:
    """Return edits that put all weights, all of the cache or all hidden states in one home."""
    places: tuple[Place, ...] = ("gpu", "cpu")
    return tuple(Edit.at(f"strategy.{what}_{one}_percent", 100 * (one == home)) for one in places)


_LOADED = frozenset(
    {
        *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")),
        *("fc1", "fc2", "self_attn_layer_norm", "final_layer_norm"),
        *(f"model.decoder.{name}" for name in ("embed_tokens", "embed_positions", "final_layer_norm")),
    }
)
"""Modules whose tensors FlexGen loads, by name."""


def _check_model(model: ModelShape) -> None:
    """Raise InputError for a model that FlexGen does not have."""
    missing = _LOADED - {one.name for one in model.distinct_modules}
    if missing:
        text = f"FlexGen has only OPT models (not OPT-350m), and {model.name} has no {min(missing)}"
        raise InputError.at(
            "model", f"{text}; choose opt-6.7b, opt-30b or opt-175b, or another strategy.kind"
        )
    if model.dtype != "float16":
        raise InputError.at("model.dtype", "FlexGen computes in float16; set it to float16")
    if model.quantization is not None:
        text = "FlexGen has a format of its own; set it to none and strategy.compress_weight to true"
        raise InputError.at("model.quantization", text)


# -- checks and texts -------------------------------------------------------------------------------


_RELAY = 4 * (2 << 30)
"""[B] of the pinned buffers of the four copy threads: each has 2^30 elements of 16 bit."""
_SCORES_HELD = 2
"""Copies of the scores that are held at once: before and after the mask, or the softmax."""
_FEWER = "lower weights_gpu_percent"
_SPLIT = "raise gpu_batches or lower batch_size"
