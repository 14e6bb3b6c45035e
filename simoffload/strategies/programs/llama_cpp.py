"""llama.cpp: layers, or the experts of layers, that the CPU computes from host memory.

Read in llama.cpp@0c1e5709 (version 0.5.0): src/llama-model.cpp (``load_tensors``), src/llama-mmap.cpp,
common/fit.cpp (``--fit``), common/arg.cpp. The last ``gpu_layers`` of all layers and the head are on the GPU;
embeddings are in host memory. Without any number the program chooses it itself, as ``--fit`` does: dense
models keep whole layers on the GPU, from the last one on; of mixtures of experts all but the experts are
there, and then those of the first layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from simoffload.bisection import first_that_holds
from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape, Module, ModuleCost, Sequences
from simoffload.models.formats import GGUF_TYPES
from simoffload.models.gguf import MIXTURES
from simoffload.models.quantization import QUANTIZATIONS, quantized
from simoffload.models.routing import recent_share
from simoffload.results import Change
from simoffload.strategies.authoring import HookedPlan, HookedStrategy
from simoffload.strategies.base import Basis, Description, Plan, ProgramTraits
from simoffload.strategies.cache.kv_cache import CacheEngine
from simoffload.strategies.divided import DividedModel, divide
from simoffload.strategies.held import Held, Home, Homes
from simoffload.strategies.hooks.on_cpu import CpuSettings, OnCpu
from simoffload.strategies.memory import cache_term, system_memory
from simoffload.strategies.passes.pass_writer import ForwardPass, Hook
from simoffload.strategies.passes.timing import FusedTiming, PassTimings
from simoffload.strategies.programs.vllm_engine import DISPLAY, VllmEngine
from simoffload.strategies.tunables import Placement, Placements, StorageTier, Tunable, Tunables
from simoffload.workload import Inference

LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]
_LEAST = 32
"""Tokens from which on weights in host memory are copied to the GPU (``GGML_OP_OFFLOAD_MIN_BATCH``)."""
_MARGIN = 1 << 30
"""Memory of the GPU [B] that ``--fit`` leaves free (``--fit-target``, 1024 MiB)."""
_CELLS = 256
"""Tokens by which the cache grows (``n_ctx`` is padded to it)."""
_SINGLE = 4
_LAUNCH_S = 3e-6
"""Time [s] of launching a kernel from C++ (an estimate; from memory, unverified)."""
_GGUF_OF = {"mxfp4": "mxfp4_moe"}
"""Mixtures of GGUF with the weights of a released format as they are."""

Layers = Annotated[int, Field(strict=True, ge=0, le=10_000)]


class LlamaCpp(HookedStrategy):
    """A LlamaCpp strategy runs llama.cpp on one GPU: some layers, or their experts, are on the CPU."""

    traits: ClassVar = ProgramTraits(formats=tuple(MIXTURES), spans_hosts=False, gpu_keys=(), on_cpu=True)
    cache_engine: ClassVar = CacheEngine("llama.cpp", formats=("int8", "int4"))

    kind: Literal["llama_cpp"] = "llama_cpp"
    ranks: Literal[1] = 1
    gpu_layers: Literal["auto", "all"] | Layers = "auto"
    """Number of layers on the GPU, the head among them (``-ngl``); auto: as ``--fit`` chooses."""
    cpu_moe: Literal["all"] | Layers | None = None
    """Number of layers, from the first one on, whose experts are on the CPU (``-ncmoe``; all: ``-cmoe``)."""
    cpu_ffn: Layers = 0
    """The same for dense layers' feed-forward networks (``-ncffn``)."""
    load_mode: LoadMode = "auto"
    """How the file is read (``-lm``); auto: mapped, so that weights on the CPU are pages of the file."""
    file: StorageTier | None = None
    """Tier of the file, from which pages are read where memory is short; by default the first with drives."""
    kv_offload: bool = True
    """Whether the cache is on the GPU with its layer; otherwise all of it is in host memory (``-nkvo``)."""
    threads: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = None
    """Number of threads of the CPU (``-t``); by default one for each core."""
    batch_size: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 2048
    """Most tokens that are given to the program at once (``-b``)."""
    ubatch_size: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 512
    """Most tokens that are computed at once (``-ub``)."""
    op_offload: bool = True
    """Whether weights are copied to the GPU for 32 tokens and more (``--no-op-offload``: no)."""

    @property
    def chooses(self) -> bool:
        """Whether the program itself chooses what is on the GPU: ``--fit`` does nothing if any is given."""
        return self.gpu_layers == "auto" and self.cpu_moe is None and not self.cpu_ffn

    @property
    def description(self) -> Description:
        """The program that the exported command starts, and the cache."""
        return super().description._replace(program="llama.cpp")

    def homes(self, model: ModelShape, machine: Machine) -> Homes:  # noqa: ARG002
        """Return the homes of what the settings name, of which ``auto`` is all on the GPU."""
        return _OnCpu.of(self, model).homes(model)

    def hooks(self, plan: HookedPlan, _forward: ForwardPass) -> Sequence[Hook]:
        """Return the hook with which the CPU computes."""
        assert isinstance(plan, LlamaPlan)
        return (OnCpu(plan.model, plan.names_on_cpu, plan.cpu_settings),)

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> LlamaPlan:
        """Apply the strategy. Raises InputError for weights that are in no format of GGUF, and for a cache
        that llama.cpp does not have."""
        model = _in_gguf(model)
        if model.attention != "sdpa" or model.softcapped:  # it has fused kernels of its own for all models
            model = replace(model, attention="sdpa", softcapped=False)
        if self.ubatch_size > self.batch_size:
            text = f"{self.ubatch_size:,} is more than batch_size, {self.batch_size:,}; lower it"
            raise InputError.at("strategy.ubatch_size", text)
        self.kv_cache.plain.check(self.cache_engine, model, what_if=False)
        cache = self.cache_of(model, workload, machine)

        def placed(on_cpu: _OnCpu) -> LlamaPlan:
            homes, unused = on_cpu.homes(model), tuple(self._unused(model))
            return LlamaPlan(model, workload, machine, self, homes, cache, unused, on_cpu=on_cpu)

        named = _OnCpu.of(self, model)
        return _fitted(placed, named, model, machine) if self.chooses else placed(named)

    def _unused(self, model: ModelShape) -> Iterator[str]:
        """Yield a warning about numbers that name layers which the model does not have."""
        parts = {True: "experts", False: "dense networks"}
        has = {one.share < 1 for one in model.distinct_modules if one.kind == "activation"}
        for key, value, experts in (("cpu_moe", self.cpu_moe, True), ("cpu_ffn", self.cpu_ffn, False)):
            if value and experts not in has:
                yield f"strategy.{key} has no effect: {model.family} has no {parts[experts]}"

    def tunables(self, _machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield where the weights are, and with a plan larger batches, pinned weights and other caches."""
        why = "gpu_layers, cpu_moe and cpu_ffn say what the CPU computes; auto is what fits"
        yield Placements(now=lambda: Placement("hbm"), refusal=why)
        if plan is None:
            return
        if not self.chooses:
            yield Tunable("memory", [Change("setting", "placement chosen by --fit", _CHOSEN)])
        yield Tunable("setting", self._settings())
        yield from self.cache_tunables(plan)

    def _settings(self) -> Iterator[Change]:
        for size in (1024, 2048, 4096):
            if size > self.ubatch_size:
                keys = ("ubatch_size", *["batch_size"] * (size > self.batch_size))
                edits = tuple(Edit.at(f"strategy.{key}", size) for key in keys)
                text = f"ubatch_size {self.ubatch_size} → {size}"
                yield Change("setting", text, edits, key=f"ubatch-{size}")
        if "mmap" in self.load_mode or self.load_mode == "auto":
            text = "load_mode none: weights on the CPU in pinned memory, not mapped"
            yield Change("setting", text, (Edit.at("strategy.load_mode", "none"),), key="load-mode-none")

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return the command that serves the model."""
        assert isinstance(plan, LlamaPlan)
        model, batch = plan.model, plan.workload.batch_size
        kind = f"-{model.quantization.upper()}" if model.quantization else ""
        cache = {"int8": "q8_0", "int4": "q4_0"}.get(plan.cache.plain.format or "")
        sizes = (self.batch_size, self.ubatch_size)
        options = {
            f"-ngl {self.gpu_layers}": self.gpu_layers != "auto",
            "-cmoe": self.cpu_moe == "all",
            f"-ncmoe {self.cpu_moe}": isinstance(self.cpu_moe, int),
            f"-ncffn {self.cpu_ffn}": self.cpu_ffn > 0,
            f"-lm {self.load_mode}": self.load_mode != "auto",
            "-nkvo": not self.kv_offload,
            f"-t {self.threads}": self.threads is not None,
            "--no-op-offload": not self.op_offload,
            f"-b {sizes[0]} -ub {sizes[1]}": sizes != (2048, 512),
            f"-ctk {cache} -ctv {cache} -fa on": cache is not None,
            f"-np {batch}": batch > 1,
        }
        command = f"llama-server -m {model.unquantized_name}{kind}.gguf -c {batch * plan.cells}"
        return {
            "llama-server.sh": " ".join((command, *(key for key, used in options.items() if used))) + "\n"
        }


_CHOSEN = tuple(
    Edit.at(f"strategy.{key}", value)
    for key, value in (("gpu_layers", "auto"), ("cpu_moe", None), ("cpu_ffn", 0))
)


def _in_gguf(model: ModelShape) -> ModelShape:
    """Return the model as a GGUF file has it: 16 bits and types of GGUF as they are, MXFP4 of a release as
    its mixture. Raises InputError for other formats."""
    formats = {
        one.storage.format for module in model.distinct_modules for one in module.parameters if one.storage
    }
    if strange := [one for one in formats if GGUF_TYPES.get(one.name) is not one]:
        name = _GGUF_OF.get(strange[0].name)
        if name is None or len(strange) > 1:
            text = f"llama.cpp has no tensors in {strange[0].name}; set model.quantization to a type of GGUF"
            raise InputError.at("strategy.kind", f"{text}, such as q4_k_m or q8_0")
        return quantized(replace(model, name=model.unquantized_name), QUANTIZATIONS[name])
    return model


# -- what is where -----------------------------------------------------------------------------------


class _OnCpu(NamedTuple):
    """An _OnCpu says which modules the CPU computes."""

    before: int = 0
    """Number of whole layers, from the first one on."""
    head: bool = False
    experts: range = range(0)
    """Layers whose experts it computes."""
    networks: int = 0
    """Number of layers, from the first one on, whose dense networks it computes."""
    attends: bool = False
    """Whether it attends in all layers, as the cache is in host memory."""
    kept: int = 0
    """Tensors of the first layer of ``experts`` that the GPU has room for: 1: up, 2: gate and up. It computes
    them; in the time of a pass the CPU computes the whole layer."""

    @classmethod
    def of(cls, strategy: LlamaCpp, model: ModelShape) -> _OnCpu:
        layers, given, moe = model.num_hidden_layers, strategy.gpu_layers, strategy.cpu_moe
        found = cls().behind(layers, layers + 1 if isinstance(given, str) else given)
        experts = range(layers if moe == "all" else min(moe or 0, layers))
        return found._replace(experts=experts, networks=strategy.cpu_ffn, attends=not strategy.kv_offload)

    def behind(self, layers: int, on_gpu: int) -> _OnCpu:
        """Return the same with the last ``on_gpu`` of all ``layers`` and the head on the GPU."""
        return self._replace(before=min(layers, max(layers + 1 - on_gpu, 0)), head=not on_gpu)

    def homes(self, model: ModelShape) -> Homes:
        """Return the homes of all tensors."""
        return Homes(model, lambda layer, one: Home("dram") if self.holds(layer, one) else Home())

    def holds(self, layer: int, module: Module) -> bool:
        """Return whether the CPU computes a module; ``layer`` is -1 outside of the layers."""
        if layer < 0:
            return module.kind == "embedding" or (self.head and module.kind in ("linear", "norm"))
        if layer < self.before:
            return True
        if module.kind == "attention":
            return self.attends
        if module.kind not in ("linear", "activation") or "attn" in module.name or "attention" in module.name:
            return False
        return layer in self.experts if module.share < 1 else layer < self.networks


def _fitted(
    placed: Callable[[_OnCpu], LlamaPlan], all_on_gpu: _OnCpu, model: ModelShape, machine: Machine
) -> LlamaPlan:
    """Return the plan with what ``--fit`` chooses: the most on the GPU that leaves its margin.

    Of dense models whole layers leave the GPU, from the first one on. Of a mixture of experts the experts of
    the last layers do, of the first of these tensor by tensor; if all of them are not enough, whole layers.
    The first layer on the GPU then keeps its experts (``common_params_fit_impl``, which counts the head as a
    layer whose experts could leave).
    """
    layers, capacity = model.num_hidden_layers, machine.tiers["hbm"].capacity
    display = DISPLAY if machine.accelerator.has_display else 0

    def fits(one: _OnCpu) -> bool:
        held = sum(part.size for part in placed(one).held if part.tier == "hbm")
        return held + display + _MARGIN <= capacity

    mixture = any(module.parallel == "experts" for module in model.distinct_modules)
    orders = [[all_on_gpu.behind(layers, number) for number in range(layers + 1, -1, -1)]]
    if mixture:
        orders[0] = [one._replace(experts=range(one.before + 1, layers)) for one in orders[0]]
        orders.insert(0, [all_on_gpu._replace(experts=range(full, layers)) for full in range(layers, 0, -1)])
    for order in orders:  # each keeps less on the GPU than the one before
        if (found := first_that_holds(order, fits)) is not None:
            more = [found._replace(kept=number) for number in (2, 1)] if found.experts else []
            return placed(next(filter(fits, more), found))
    return placed(orders[-1][-1])


_CONTEXT, _CONTEXT_BYTES = "CUDA context", 527 << 20
"""Memory that CUDA takes before llama.cpp asks what is free: 80,552 of 81,079 MiB on an H100
(docs/measurements/h100-2026-11-27)."""


# -- the plan ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LlamaPlan(HookedPlan):
    """A LlamaPlan is the plan of a model of which the CPU computes a part."""

    strategy: LlamaCpp
    on_cpu: _OnCpu = field(kw_only=True)
    """Modules that the CPU computes."""

    @property
    def fused(self) -> bool:
        """Whether kernels are fused: always, as llama.cpp has its own."""
        return True

    @cached_property
    def divided(self) -> DividedModel:
        """The model, whose projections are products of their own."""
        return divide(self.model, tensor=1, pipeline=1, fused=False)

    @property
    def basis(self) -> Basis:
        """Numbers on which its times rest: those of products on the CPU among them."""
        products = self.machine.host.products
        rates = self.machine.accelerator.llama_kernels.deciding
        uncompared = ("computed layers with llama.cpp",)
        return super().basis._replace(cpu_costs=products.deciding, gpu_rates=rates, uncompared=uncompared)

    @cached_property
    def names_on_cpu(self) -> tuple[frozenset[str], ...]:
        """Names of the modules of each layer that the CPU computes, and behind them of those outside."""
        outside = (*self.model.modules_before, *self.model.modules_after)
        return tuple(
            frozenset(one.name for one in modules if self.on_cpu.holds(number, one))
            for number, modules in (*enumerate(self.model.layers), (-1, outside))
        )

    @cached_property
    def cpu_settings(self) -> CpuSettings:
        """Threads of the CPU, and when weights are copied to the GPU or read from the file."""
        own = self.strategy
        return CpuSettings(
            threads=own.threads or self.machine.host.cpu_optimizer.cores.value,
            least=_LEAST if own.op_offload else None,
            pinned=not self.mapped,
            missing=self.missing,
            file=self.file,
        )

    # -- memory -------------------------------------------------------------------------------------

    @property
    def mapped(self) -> bool:
        """Whether weights on the CPU are pages of the file."""
        return "mmap" in self.strategy.load_mode or self.strategy.load_mode == "auto"

    @property
    def evicted(self) -> bool:
        """Whether pages of the file leave memory that is short, which locked ones do not."""
        return self.mapped and "mlock" not in self.strategy.load_mode and self.file != ""

    @property
    def file(self) -> str:
        """Tier of the file: the one that is named, or the first one with drives; "" without any."""
        tiers = self.machine.tiers
        return self.strategy.file or next((name for name, one in tiers.items() if one.is_storage), "")

    def missing(self, module: Module, tokens: int) -> float:
        """Return the share of the weights of a module that a pass with so many tokens reads from the file.

        A pass reads weights in the same order as the one before, so that Linux has evicted what comes next:
        none is found, nor experts of many tokens. Of the experts of one token those are found that were used
        last and have room.
        """
        model, (room, experts) = self.model, self._room_for_experts
        if room < 0 or (module.share == 1 and room > 0):
            return 0.0
        if module.share == 1 or tokens > 1:
            return 1.0
        chances = model.routing.probabilities(model.num_experts, model.experts_per_token)
        return 1 - recent_share(chances, room / experts)

    @cached_property
    def _room_for_experts(self) -> tuple[float, float]:
        """Room for experts on the CPU, beside all other weights there, and their size [B]; below zero if all
        weights have room."""
        if not self.evicted or self.weights_on_cpu <= self.memory_left:
            return -1.0, 0.0
        experts = sum(
            one.stored_bytes(self.model.dtype_bytes)
            for number, layer in enumerate(self.model.layers)
            for module in layer
            if module.share < 1 and self.on_cpu.holds(number, module)
            for one in module.parameters
        )
        others = self.weights_on_cpu - experts
        return (max(0.0, self.memory_left - others), experts) if experts > others else (0.0, 0.0)

    @cached_property
    def weights_on_cpu(self) -> int:
        """Size of the weights in host memory [B]."""
        return sum(sum(sizes) for home, sizes in self.homes.all.items() if home.tier == "dram") - self._kept

    @cached_property
    def _tied(self) -> int:
        """Size of the copy of embeddings that is the head on the GPU [B]."""
        tied = [part for one in self.model.modules_after for part in one.parameters if part.tied]
        return 0 if self.on_cpu.head else sum(part.stored_bytes(self.model.dtype_bytes) for part in tied)

    @cached_property
    def _kept(self) -> int:
        """Size of the tensors of a layer whose other experts are on the CPU [B]."""
        if not self.on_cpu.kept:
            return 0
        layer = self.model.layers[self.on_cpu.experts.start]
        sizes = [
            part.stored_bytes(self.model.dtype_bytes)
            for one in layer
            if one.parallel == "experts" and one.parameters
            for part in one.parameters
            if "down" not in part.name
        ]
        return sum(sizes) * self.on_cpu.kept // 2

    @cached_property
    def memory_left(self) -> int:
        """Host memory that is left for weights [B]."""
        others = sum(one.size for one in self.held_beside if one.tier == "dram")
        return max(0, self.machine.tiers["dram"].capacity - others)

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """Weights, cache, buffers of a graph, and what the systems of GPU and host take."""
        on_gpu = sum(sum(sizes) for home, sizes in self.homes.all.items() if home.tier == "hbm")
        on_gpu += self._kept + self._tied
        on_cpu, remedy = self.weights_on_cpu, "lower gpu_layers, or raise cpu_moe; auto chooses what fits"
        found = [Held("hbm", "weights", on_gpu, remedy=remedy, kind="weights")]
        if self.evicted:
            resident = min(on_cpu, self.memory_left)
            found += [Held("dram", "weights", resident, kind="weights")]
            found += [Held(self.file, "file of the weights", on_gpu + on_cpu, kind="weights")] * (
                on_cpu > resident
            )
        else:
            found += [Held("dram", "weights", on_cpu, pinned=not self.mapped, kind="weights")]
        return (*found, *self.held_beside)

    @cached_property
    def held_beside(self) -> tuple[Held, ...]:
        """What is needed beside the weights."""
        own, model, batch = self.strategy, self.model, self.workload.batch_size
        element = self.cache.element_bytes(model.dtype_bytes) / model.dtype_bytes
        each = dict.fromkeys((True, False), 0.0)
        for number, layer in enumerate(model.layers):
            for one in layer:
                if one.kind == "attention":
                    cells = self._cells(one.window)
                    each[self.on_cpu.holds(number, one)] += cells * model.cache_width * model.dtype_bytes
        state, remedy = batch * model.state_bytes, "lower ubatch_size"
        return (
            cache_term("hbm", round(batch * each[False] * element) + state),
            *([cache_term("dram", round(batch * each[True] * element))] if each[True] else []),
            Held("hbm", "buffers of the graph", self.graph_bytes, remedy=remedy),
            Held("dram", "buffers of the graph", self.host_graph_bytes, pinned=True, remedy=remedy),
            Held("hbm", _CONTEXT, _CONTEXT_BYTES),
            system_memory(self.machine),
        )

    @property
    def cells(self) -> int:
        """Tokens of a sequence for which the cache has room."""
        return _padded(self.workload.max_context)

    @property
    def tokens(self) -> int:
        """Tokens for which the buffers of a graph have room."""
        work = self.workload
        return min(self.strategy.ubatch_size, work.batch_size * (work.prompt_length + work.output_length))

    def _cells(self, window: int | None) -> int:
        """Return the tokens of a sequence for which the cache of a layer has room."""
        return self.cells if window is None else min(self.cells, _padded(window + self.strategy.ubatch_size))

    @property
    def _masks(self) -> list[int]:
        """Sizes of the masks of attention, in 16 bits [B]."""
        windows = {one.window for one in self.model.distinct_modules if one.kind == "attention"}
        row = self.tokens * self.workload.batch_size * 2
        return [row * self._cells(window) for window in windows]

    @property
    def host_graph_bytes(self) -> int:
        """Size of the buffers of a graph in host memory [B]: embeddings, their copy, and masks."""
        return 2 * self.tokens * self.model.hidden_size * _SINGLE + sum(self._masks)

    @cached_property
    def graph_bytes(self) -> int:
        """Size of the buffers of a graph on the GPU [B]: the largest one of its moments.

        At the end these are logits and hidden states, above which the results of experts of the last layer
        leave a gap if the GPU computes them (``ggml_gallocr``); and where a tensor is brought to the GPU,
        that tensor with what is read and written.
        """
        model, row = self.model, self.tokens * _SINGLE
        hidden, logits = model.hidden_size * row, model.vocab_size * row
        sizes = [0 if self.on_cpu.head else logits + hidden + self._gap]
        if not self.strategy.op_offload or self.tokens < _LEAST:
            return sizes[0]
        sizes += [logits + hidden + size for _, size in self._brought(-1, model.modules_after)]
        for number, layer in enumerate(model.layers):
            sizes += [
                size + max(self._masks) + 3 * hidden + chosen * (wide * row + hidden)
                for (chosen, wide), size in self._brought(number, layer)
            ]
        return max(sizes)

    @property
    def _gap(self) -> int:
        """Size of what experts of the last layer leave below the logits [B]."""
        model = self.model
        hidden, chosen = model.hidden_size * self.tokens * _SINGLE, model.experts_per_token
        last = [one for one in model.layers[-1] if one.parallel == "experts" and one.parameters]
        if not last or last[0].name in self.names_on_cpu[-2]:
            return 0
        wide = self._widths(last[0])[1] * self.tokens * _SINGLE
        return hidden + max(2 * chosen * wide, (chosen + 1) * hidden)

    def _widths(self, module: Module) -> tuple[int, int]:
        """Return how many experts of a token a module has, 1 if none, and the width within its network."""
        model = self.model
        if module.parallel == "experts":
            each = module.parameters[-1].numel if len(module.parameters) < 4 else module.parameters[2].numel
            return model.experts_per_token, each // (model.num_experts * model.hidden_size)
        return 1, max(module.in_features, module.out_features)

    def _brought(self, layer: int, modules: Sequence[Module]) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield the widths and the size [B] of each tensor that is brought to the GPU for many tokens; gate
        and up are two."""
        for one in modules:
            if one.parameters and self.on_cpu.holds(layer, one):
                for part in one.parameters:
                    size = part.stored_bytes(self.model.dtype_bytes)
                    yield self._widths(one), size // (2 if "gate_up" in part.name else 1)

    # -- passes -------------------------------------------------------------------------------------

    def micro_batches(self, forward: ForwardPass) -> Sequence[tuple[Sequences, ...]]:
        """Return the parts of a pass that are computed at once."""
        return VllmEngine(self.strategy.ubatch_size).chunks(forward.batch)

    @cached_property
    def stage_timings(self) -> tuple[PassTimings, ...]:
        """GPU times of the modules for any pass."""
        return (
            LlamaTimings(
                machine=self.machine,
                model=self.model,
                modules=self.modules,
                zero3=False,
                cache=self.cache_form,
            ),
        )


def _padded(cells: int) -> int:
    """Return the number of cells of the cache for so many tokens."""
    return -(-cells // _CELLS) * _CELLS


class LlamaTiming(FusedTiming):
    """A LlamaTiming has the durations of llama.cpp's CUDA kernels, of which a stretch is one CUDA graph in a
    decode step.

    Counted in ggml/src/ggml-cuda of llama.cpp@0c1e5709 with its fusions: a norm with its weight, and an
    addition behind each block; a product of quantized weights with the rounding of its input to 8 bits
    (``quantize_q8_1``), those of gate and up in one kernel if there is one token; rotations, that of keys
    with their write, and the write of values (3), attention and the sum of its parts (2); router and choice
    of experts (2), their weighing and sum (2).
    """

    def launch_s(self, module: Module) -> float:
        """Return the host time of launching the kernels of ``module`` [s]."""
        return 0.0 if self.decodes else self.kernels(module) * _LAUNCH_S

    def kernels(self, module: Module) -> int:
        """Count the kernels of one call of ``module``."""
        match module.kind:
            case "attention":
                return 5
            case "norm":
                return 2 if module.parallel == "whole" else 1
            case "router":
                return 2
            case "linear" if module.parallel == "experts":
                return 6
            case "linear" if self.decodes and module.name.endswith("up_proj"):
                return 0
            case "linear":
                return 2
            case "activation":
                return 0 if self.decodes else 1
        return 0

    def _kernels_s(self, module: Module, cost: ModuleCost) -> float:
        """Return the time of the kernels of ``module`` [s], each with the latency of ggml's."""
        found, gpu = super()._kernels_s(module, cost), self.machine.accelerator
        code = gpu.llama_kernels
        shorter = gpu.kernels.kernel_latency.value - code.kernel_latency.value
        found -= self.kernels(module) * shorter if found else 0.0
        if module.kind == "attention":  # its kernels have the instructions of those of products
            found = max(found, cost.flops / (gpu.peak("float16") * code.products.points[-1][1]))
            if self.decodes:
                found += cost.bytes * _CACHE_FLOPS / gpu.compute.float32.value
        return found

    def _product_s(self, module: Module, cost: ModuleCost) -> float:
        """Return the time of a product [s] without the latency of its kernels; weights in single precision
        and of 16 bits are multiplied as elsewhere."""
        stored = self._stored(module)
        if not stored:
            return super()._product_s(module, cost)
        gpu, code, model = self.machine.accelerator, self.machine.accelerator.llama_kernels, self._model
        experts, tokens = module.parallel == "experts", max(1, self._tokens(module))
        bits = min(one.storage.format.bits_per_weight for one in module.parameters if one.storage is not None)
        reading = cost.bytes / (gpu.hbm_bandwidth.value * gpu.kernels.read_efficiency.value)
        if experts:
            reading += stored / code.decode_experts.value
        elif bits < _EIGHT:
            reading += stored / code.decode.value
        rows, curve = float(tokens), code.products
        if experts:
            touched = max(1.0, model.num_experts * model.touched_share(module, tokens))
            rows, curve = tokens * model.experts_per_token / touched, code.grouped
        if tokens == 1:
            return reading
        return max(reading, cost.flops / (gpu.peak("float16") * curve.at(rows)))


_CACHE_FLOPS = 32
"""Operations in single precision that attention of one token takes for each byte of the cache.

Source: three models on a DGX Spark, 32,768 tokens in the cache against none, read 180 to 193 GB/s of it where
weights are read at 232 (benches/dgx-spark of llama.cpp, 2026-02; rows in view)."""
_EIGHT = 8
"""Bits per weight from which weights need no decoding."""


class LlamaTimings(PassTimings):
    """LlamaTimings are the durations of modules under llama.cpp."""

    def timing(self, batch: tuple[Sequences, ...]) -> LlamaTiming:
        """Return the timing of one pass."""
        return LlamaTiming(
            machine=self._machine, model=self._model, batch=batch, zero3=False, cache=self._cache
        )
