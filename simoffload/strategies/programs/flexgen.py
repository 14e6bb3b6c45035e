"""FlexGen (FlexLLMGen): a block of GPU batches, with weights, cache and hidden states divided by percentages.

Reference: FMInference/FlexLLMGen@004ffef, ``flexllmgen/flex_opt.py``. ``flexgen_layout`` states what its code
keeps where, and the GPU times of its kernels, ``hooks.slots`` what it does when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise, product
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine, Tier
from simoffload.models import ModelShape, Module, Sequences
from simoffload.results import FLEXGEN_4BIT, Change
from simoffload.strategies.base import Basis, Description, Plan, ProgramTraits, Strategy
from simoffload.strategies.held import Held, HeldKind
from simoffload.strategies.hooks.slots import slot_hooks, slot_parts
from simoffload.strategies.memory import ROUNDING, pinned_rounding, system_memory
from simoffload.strategies.passes.pass_writer import ForwardPass, Hook, Part
from simoffload.strategies.passes.timing import arithmetic_beyond
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.programs.flexgen_layout import (
    BlockCache,
    BlockSlots,
    FlexGenOptions,
    Place,
    Shares,
    SlotTimings,
    slots_of,
)
from simoffload.strategies.tunables import (
    Placement,
    Placements,
    Sizes,
    StorageTier,
    Tunable,
    Tunables,
    memory_tunables,
)
from simoffload.units import format_bytes
from simoffload.workload import Inference

Percent = Annotated[int, Field(strict=True, ge=0, le=100)]
Flag = Annotated[bool, Field(strict=True)]


class FlexGen(Strategy):
    """Inference under FlexGen, which offloads weights, key-value cache and hidden states of OPT models; the
    workload's batch is its block."""

    traits: ClassVar = ProgramTraits(spans_hosts=False)
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

    # -- places ---------------------------------------------------------------------------------

    def tunables(self, machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield the tiers of the machine for all weights, shares of weights and cache, 4 bits, and numbers of
        GPU batches."""
        yield Placements(
            now=self._slowest,
            possible=tuple(map(Placement, machine.tiers)),
            edits=lambda other: self._all_on(machine.tiers[other.weights]),
            phrase="{} divided by FlexGen",
            storage=True,
        )
        if not isinstance(plan, FlexGenPlan):
            return
        yield Tunable("tier", self._cache_moves(machine))
        rest = (*_all_in("cache", "cpu"), *_all_in("activations", "cpu"))
        for tier in sorted(machine.tiers.values(), key=lambda one: one.capacity):
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
        if not tier.is_storage:
            return _all_in("weights", "gpu" if tier.kind == "hbm" else "cpu")
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
        names = {"hbm": self.cache.gpu, "dram": self.cache.cpu, self.disk or "disk": self.cache.disk}
        held = [
            name if percent == 100 else f"{percent} % {name}" for name, percent in names.items() if percent
        ]
        stored = "4 bits" if self.compress_cache else ""
        return Description("flexllmgen 0.1.8", ", ".join((*held, *filter(None, (stored,)))), stored)

    def _caches(self, machine: Machine) -> Iterator[Change]:
        """Yield all of the cache in one place, in full and in 4 bits, with attention on either side; and the
        present shares."""
        tiers = machine.tiers
        disks = [self.disk] if self.disk else [name for name, tier in tiers.items() if tier.is_storage]
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

    def sizes(self, batch_size: int = 1) -> Sizes:
        """Return the edits that make a block of more or fewer GPU batches of the same size, or of one smaller
        GPU batch."""
        unit = batch_size // self.gpu_batches if self.gpu_batches > 1 else 1

        def batch(count: int) -> tuple[Edit, ...]:
            parts, rest = divmod(count, unit)
            batches = parts if self.gpu_batches > 1 and not rest else 1
            divided = () if batches == self.gpu_batches else (Edit.at("strategy.gpu_batches", batches),)
            return (Edit.at("workload.batch_size", count), *divided)

        return super().sizes(batch_size)._replace(batch=batch, unit=unit)

    # -- the plan -------------------------------------------------------------------------------

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> FlexGenPlan:
        """Apply the strategy. Raises InputError for models and settings that FlexGen refuses."""
        _check_model(model)
        self._check_shares()
        if workload.batch_size % self.gpu_batches:
            text = f"workload.batch_size {workload.batch_size} is not a multiple of {self.gpu_batches}"
            raise InputError.at("strategy.gpu_batches", f"{text}; change one of them")
        home = self.activations.place
        assert home is not None  # checked above
        options = FlexGenOptions(
            weights=self.weights,
            cache=self.cache,
            activations=home,
            disk=self.disk or "",
            gpu_batches=self.gpu_batches,
            pin_weight=self.pin_weight,
            compress_weight=self.compress_weight,
            compress_cache=self.compress_cache,
            cpu_attention=self.cpu_attention,
            overlap=self.overlap,
            sep_layer=self.sep_layer,
            page_cache=self.page_cache,
        )
        return FlexGenPlan(model=model, workload=workload, machine=machine, options=options)

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


# -- the plan -----------------------------------------------------------------------------------

_RELAY = 4 * (2 << 30)
"""[B] of the pinned buffers of the four copy threads: each has 2^30 elements of 16 bit."""
_SCORES_HELD = 2
"""Copies of the scores that are held at once: before and after the mask, or the softmax."""
_FEWER = "lower weights_gpu_percent"
_SPLIT = "raise gpu_batches or lower batch_size"


@dataclass(frozen=True)
class FlexGenPlan(InferencePlan):
    """A FlexGenPlan is the plan of FlexGen for one model on one machine."""

    model: ModelShape
    workload: Inference
    machine: Machine
    options: FlexGenOptions

    @cached_property
    def slots(self) -> BlockSlots:
        """Slots that a pass goes through."""
        return slots_of(self.model, self.options)

    @property
    def modules(self) -> tuple[Module, ...]:
        """Modules of all slots; those of a layer are listed once."""
        return self.slots.modules

    @cached_property
    def block_cache(self) -> BlockCache:
        """Keys and values of one layer and GPU batch."""
        model, length = self.model, self.workload.max_context
        return BlockCache(self.options, model.hidden_size, model.head_dim, length)

    @cached_property
    def timings(self) -> SlotTimings:
        """GPU times of slots and modules for one GPU batch."""
        return SlotTimings(self.machine, self.model, self.slots, self.block_cache)

    # -- one GPU batch --------------------------------------------------------------------------

    @property
    def gpu_batch_size(self) -> int:
        """Number of sequences of a GPU batch."""
        return self.workload.batch_size // self.options.gpu_batches

    def of_gpu_batch(self, batch: Sequence[Sequences]) -> tuple[Sequences, ...]:
        """Return the sequences of one GPU batch of a block, rounded up."""
        return tuple(one._replace(number=-(-one.number // self.options.gpu_batches)) for one in batch)

    def durations(self, forward: ForwardPass) -> tuple[int, ...]:
        """Return the GPU time of each module for a GPU batch [ps], and last the elements of its cache, in
        which decode steps differ wherever the CPU computes attention or copies it."""
        batch = self.of_gpu_batch(forward.batch)
        return (*self.timings.durations(batch), sum(self.block_cache.parts(batch)))

    @cached_property
    def _parts(self) -> tuple[tuple[Part, ...], ...]:
        """Slots of a pass, for each GPU batch."""
        options = self.options
        return (slot_parts(self.slots, gpu_batches=options.gpu_batches, overlap=options.overlap),)

    def micro_batches(self, forward: ForwardPass) -> tuple[tuple[Sequences, ...]]:
        """Return the sequences of a GPU batch: all of a block go through the same slots."""
        return (self.of_gpu_batch(forward.batch),)

    def weights_hooks(self, _forward: ForwardPass) -> Sequence[Hook]:
        """Return the hooks of slots, which also move cache and hidden states."""
        return slot_hooks(self)

    # -- what is assumed ------------------------------------------------------------------------

    @property
    def basis(self) -> Basis:
        """Costs of operations, on which its times rest."""
        batch = self.workload.model_copy(update={"batch_size": self.gpu_batch_size})
        beyond = tuple(arithmetic_beyond(self.model, batch, self.machine))
        return Basis((self.machine.host.eager_costs.operation,), extrapolations=beyond)

    @cached_property
    def cached(self) -> bool:
        """Whether the files on disk are in the page cache after the first pass."""
        if self.options.page_cache is not None:
            return self.options.page_cache
        needed = sum(one.size for one in self.held if one.tier in ("dram", self.options.disk))
        return needed <= self.machine.tiers["dram"].capacity

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Warnings about what is assumed of the page cache."""
        files = sum(one.size for one in self.held if one.tier == self.options.disk)
        if not files or self.options.page_cache is not None:
            return ()
        text = f"{format_bytes(files)} of files on {self.options.disk}"
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
        return sum(sizes) * self.slots.layers * self.options.gpu_batches

    @property
    def _hidden(self) -> int:
        """Size [B] of the hidden states of the prompts of one GPU batch."""
        work = self.workload
        return self.gpu_batch_size * work.prompt_length * self.model.hidden_size * self.model.dtype_bytes

    def _on_gpu(self) -> tuple[Held, ...]:
        options, model, slots = self.options, self.model, self.slots
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
        kept = options.gpu_batches if options.activations == "gpu" else 3
        fewer = "lower cache_gpu_percent, batch_size or prompt_length"
        found: tuple[tuple[str, int, str, HeldKind], ...] = (
            ("weights", slots.weight_bytes("hbm"), _FEWER, "weights"),
            ("weights in use and of the next slot", max(pairs), _FEWER, "staging"),
            ("weights written in full", expanded, "", "working"),
            ("key-value cache", self.cache_bytes(0, most), fewer, "cache"),
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
        options, slots = self.options, self.slots
        here = [(one, count) for one, count in slots.tensors if one.home.tier == "dram"]
        sizes = [size for one, count in here if one.home.pinned for size in one.sizes * count]
        sizes += [self._hidden] * (options.gpu_batches if options.activations == "cpu" else 0)
        pageable = sum(count * one.size for one, count in here if not one.home.pinned)
        workspace = 0
        if options.cpu_attention:  # keys and values of one GPU batch in single precision
            batch = (Sequences(self.gpu_batch_size, 1, self.workload.max_context),)
            workspace = 2 * 4 * self.block_cache.padded(sum(self.block_cache.parts(batch)))
        held = self._hidden * options.gpu_batches if options.activations == "cpu" else 0
        cache = self.cache_bytes(1, self.workload.max_context)
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
        work, slots, options, batches = self.workload, self.slots, self.options, self.options.gpu_batches
        passes, moves = 1 + work.decode_steps, slots.layers * len(slots.layer) + 1
        weights, cache = slots.weight_bytes(options.disk), self.cache_bytes(2, work.max_context)
        there = batches if options.activations == "disk" else 0
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
            Held(options.disk, name, size, kind=kind, traffic=partial(self._transferred, read, written))
            for name, size, kind, read, written in found
            if size
        )

    def _transferred(self, read: Callable[[], int], written: int) -> tuple[int, int]:
        """Return bytes that the disk reads and writes, of which the page cache may hold those that are
        read."""
        return 0 if self.cached else read(), written
