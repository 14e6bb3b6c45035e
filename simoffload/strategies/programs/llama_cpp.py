"""llama.cpp: layers, or the experts of layers, that the CPU computes from host memory.

Read in llama.cpp@0c1e5709 (version 0.5.0): src/llama-model.cpp (``load_tensors``), src/llama-mmap.cpp,
common/arg.cpp. The last ``gpu_layers`` of all layers and the head are on the GPU; embeddings are in host
memory. Without any number the program chooses it itself (``hooks/cpu_placement.py``).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape, Sequences
from simoffload.models.quantization import in_gguf
from simoffload.results import Change
from simoffload.strategies.authoring import HookedPlan, HookedStrategy
from simoffload.strategies.base import Basis, Description, Plan, ProgramTraits, Strategy
from simoffload.strategies.cache.kv_cache import CacheEngine
from simoffload.strategies.divided import DividedModel, divide
from simoffload.strategies.held import Held, Homes
from simoffload.strategies.hooks.cpu_placement import CpuPlacement, fitted
from simoffload.strategies.hooks.graph_buffers import GraphBuffers
from simoffload.strategies.hooks.on_cpu import CpuSettings, MappedWeights, OnCpu
from simoffload.strategies.hooks.tensor_overrides import overridden, read_overrides
from simoffload.strategies.memory import cache_term, system_memory
from simoffload.strategies.passes.ggml_timing import GgmlTimings
from simoffload.strategies.passes.pass_writer import ForwardPass, Hook
from simoffload.strategies.passes.timing import PassTimings
from simoffload.strategies.programs.vllm_engine import DISPLAY, VllmEngine
from simoffload.strategies.tunables import Placement, Placements, StorageTier, Tunable, Tunables
from simoffload.workload import Inference

LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]
_LEAST = 32
"""Tokens from which on weights in host memory are copied to the GPU (``GGML_OP_OFFLOAD_MIN_BATCH``)."""
_MARGIN = 1 << 30
"""Memory of the GPU [B] that ``--fit`` leaves free (``--fit-target``, 1024 MiB)."""
_CHOSEN: dict[str, Any] = {"gpu_layers": "auto", "cpu_moe": None, "cpu_ffn": 0, "override_tensor": ()}
"""Values of the keys with which ``--fit`` chooses the placement."""
_CELLS = 256
"""Tokens by which the cache grows (``n_ctx`` is padded to it)."""

Overrides = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]
Layers = Annotated[int, Field(strict=True, ge=0, le=10_000)]


class LlamaCpp(HookedStrategy):
    """A LlamaCpp strategy runs llama.cpp on one GPU: some layers, or their experts, are on the CPU."""

    traits: ClassVar = ProgramTraits(
        evidence="llama_cpp", formats=("q8_0", "q6_k", "q4_k_m"), spans_hosts=False, gpu_keys=(), on_cpu=True
    )
    cache_engine: ClassVar = CacheEngine("llama.cpp", formats=("int8", "int4"))

    kind: Literal["llama_cpp"] = "llama_cpp"
    ranks: Literal[1] = 1
    gpu_layers: Literal["auto", "all"] | Layers = "auto"
    """Number of layers on the GPU, the head among them (``-ngl``); auto: as ``--fit`` chooses."""
    cpu_moe: Literal["all"] | Layers | None = None
    """Number of layers, from the first one on, whose experts are on the CPU (``-ncmoe``; all: ``-cmoe``)."""
    cpu_ffn: Layers = 0
    """The same for dense layers' feed-forward networks (``-ncffn``)."""
    override_tensor: Overrides = ()
    """Patterns of tensors with their devices (``-ot``), such as ``blk\\.[0-9]\\.ffn_.*_exps=CPU``."""
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
        return all(getattr(self, key) == value for key, value in _CHOSEN.items())

    @property
    def mapped(self) -> bool:
        """Whether weights on the CPU are pages of the file."""
        return "mmap" in self.load_mode or self.load_mode == "auto"

    @property
    def description(self) -> Description:
        """The program that the exported command starts, and the cache."""
        return super().description._replace(program="llama.cpp")

    @classmethod
    def instead(
        cls, _other: Strategy, model: ModelShape, workload: Any, machine: Machine, gpus: int
    ) -> Iterator[tuple[Tunable, ...]]:
        """Yield the program on one GPU of a personal machine, with what it chooses to compute on the CPU."""
        if not machine.is_personal or gpus != 1 or not isinstance(workload, Inference):
            return
        try:
            plan = cls().plan(model, workload, machine)
        except InputError:  # in weights of another program
            return
        loads = plan.lacks_pages and plan.weights_on_cpu <= plan.memory_left
        written = {"kind": "llama_cpp"} | ({"load_mode": "none"} if loads else {})
        text = f"llama.cpp with {plan.on_cpu.phrase(model)}{', loaded (-lm none)' * loads}"
        yield (Tunable("division", (Change("placement", text, (Edit(("strategy",), written),)),)),)

    def homes(self, model: ModelShape, machine: Machine) -> Homes:  # noqa: ARG002
        """Return the homes of what the settings name, of which ``auto`` is all on the GPU."""
        return self._named(model).homes(model)

    def hooks(self, plan: HookedPlan, _forward: ForwardPass) -> Sequence[Hook]:
        """Return the hook with which the CPU computes."""
        assert isinstance(plan, LlamaPlan)
        return (OnCpu(plan.model, plan.on_cpu.shares(plan.model), plan.cpu_settings),)

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> LlamaPlan:
        """Apply the strategy. Raises InputError for weights in no format of GGUF, and for caches it lacks."""
        model = in_gguf(model)
        if self.ubatch_size > self.batch_size:
            text = f"{self.ubatch_size:,} is more than batch_size, {self.batch_size:,}; lower it"
            raise InputError.at("strategy.ubatch_size", text)
        self.kv_cache.plain.check(self.cache_engine, model, what_if=False)
        cache, named = self.cache_of(model, workload, machine), self._named(model)

        def placed(on_cpu: CpuPlacement) -> LlamaPlan:
            homes, unused = on_cpu.homes(model), tuple(named.unused(model))
            return LlamaPlan(model, workload, machine, self, homes, cache, unused, on_cpu=on_cpu)

        if self.chooses:
            key = (self, workload, machine.tiers["hbm"].capacity, machine.accelerator.has_display)
            named = fitted(named, model, lambda one: placed(one).spare >= 0, key)
        return placed(named)

    def _named(self, model: ModelShape) -> CpuPlacement:
        """Return the placement that the settings name, of which ``auto`` is all on the GPU."""
        layers, given, moe = model.num_hidden_layers, self.gpu_layers, self.cpu_moe
        found = CpuPlacement().behind(layers, layers + 1 if isinstance(given, str) else given)
        experts = range(layers if moe == "all" else min(moe or 0, layers))
        found = found._replace(experts=experts, networks=self.cpu_ffn, attends=not self.kv_offload)
        patterns = read_overrides(self.override_tensor, "strategy.override_tensor")
        return found._replace(overridden=overridden(model, patterns, found.holds)) if patterns else found

    def tunables(self, _machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield where the weights are, and with a plan larger batches, pinned weights and other caches."""
        why = "gpu_layers, cpu_moe and cpu_ffn say what the CPU computes; auto is what fits"
        yield Placements(now=lambda: Placement("hbm"), refusal=why)
        if plan is None:
            return
        if not self.chooses:
            edits = tuple(Edit.at(f"strategy.{key}", value) for key, value in _CHOSEN.items())
            yield Tunable("memory", [Change("setting", "placement chosen by --fit", edits)])
        assert isinstance(plan, LlamaPlan)
        yield Tunable("setting", self._settings(plan.workload.batch_size * plan.workload.prompt_length))
        yield from self.cache_tunables(plan)

    def _settings(self, tokens: int) -> Iterator[Change]:
        for size in (1024, 2048, 4096):
            if self.ubatch_size < min(size, tokens):
                sizes = {"ubatch_size": size, "batch_size": max(size, self.batch_size)}
                edits = tuple(Edit.at(f"strategy.{key}", value) for key, value in sizes.items())
                text = f"ubatch_size {self.ubatch_size} → {size}"
                yield Change("setting", text, edits, key=f"ubatch-{size}")
        if self.mapped:
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
            f"-ot {shlex.quote(','.join(self.override_tensor))}": bool(self.override_tensor),
            f"-lm {self.load_mode}": self.load_mode != "auto",
            "-nkvo": not self.kv_offload,
            f"-t {self.threads}": self.threads is not None,
            "--no-op-offload": not self.op_offload,
            f"-b {sizes[0]} -ub {sizes[1]}": sizes != (2048, 512),
            f"-ctk {cache} -ctv {cache} -fa on": cache is not None,
            f"-np {batch}": batch > 1,
        }
        command = f"llama-server -m {model.unquantized_name}{kind}.gguf -c {batch * plan.cells()}"
        parts = (command, *(key for key, used in options.items() if used))
        return {"llama-server.sh": " ".join(parts) + "\n"}


_CONTEXT, _CONTEXT_BYTES = "CUDA context", 527 << 20
"""Memory that CUDA takes before llama.cpp asks what is free: 80,552 of 81,079 MiB on an H100
(docs/measurements/h100-2026-11-27)."""


# -- the plan ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LlamaPlan(HookedPlan):
    """A LlamaPlan is the plan of a model of which the CPU computes a part."""

    strategy: LlamaCpp
    on_cpu: CpuPlacement = field(kw_only=True)
    """Modules that the CPU computes."""

    fused = True
    """Whether kernels are fused: always, as llama.cpp has its own."""

    @cached_property
    def divided(self) -> DividedModel:
        """The model, whose projections are products of their own."""
        return divide(self.model, tensor=1, pipeline=1, fused=False)

    @property
    def basis(self) -> Basis:
        """Numbers on which its times rest: those of products on the CPU among them."""
        products = self.machine.host.products
        rates = self.machine.accelerator.llama_kernels.deciding
        lacking = ("read missing pages of its weights",) * self.lacks_pages
        return super().basis._replace(cpu_costs=products.deciding, gpu_rates=rates, uncompared=lacking)

    @cached_property
    def cpu_settings(self) -> CpuSettings:
        """Threads of the CPU, and when weights are copied to the GPU or read from the file."""
        own, size = self.strategy, self.model.weight_bytes
        pages = MappedWeights(size, self.weights_on_cpu, self.memory_left if self.evicted else size)
        return CpuSettings(
            threads=own.threads or self.machine.host.cpu_optimizer.cores.value,
            least=_LEAST if own.op_offload else None,
            pinned=not self.strategy.mapped,
            missing=pages.missing,
            file=self.file,
        )

    @property
    def evicted(self) -> bool:
        """Whether pages of the file leave memory that is short, which locked ones do not."""
        return self.strategy.mapped and "mlock" not in self.strategy.load_mode and self.file != ""

    @property
    def lacks_pages(self) -> bool:
        """Whether the file has no room in memory, so that pages of experts are read for each token."""
        return self.evicted and self.memory_left < self.model.weight_bytes

    @property
    def file(self) -> str:
        """Tier of the file: the one that is named, or the first one with drives; "" without any."""
        tiers = self.machine.tiers
        return self.strategy.file or next((name for name, one in tiers.items() if one.is_storage), "")

    @cached_property
    def weights_on_cpu(self) -> int:
        """Size of the weights in host memory [B]."""
        stored = (sum(sizes) for home, sizes in self.homes.all.items() if home.tier == "dram")
        return sum(stored) - self.on_cpu.kept_bytes(self.model)

    @cached_property
    def _tied(self) -> int:
        """Size of the copy of embeddings that is the head on the GPU [B]."""
        tied = [part for one in self.model.modules_after for part in one.parameters if part.tied]
        return 0 if self.on_cpu.head else sum(part.stored_bytes(self.model.dtype_bytes) for part in tied)

    @cached_property
    def memory_left(self) -> int:
        """Host memory that is left for weights [B]."""
        others = sum(one.size for one in self.held_beside if one.tier == "dram")
        return max(0, self.machine.tiers["dram"].capacity - others)

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """Weights, cache, buffers of a graph, and what the systems of GPU and host take."""
        on_gpu = sum(sum(sizes) for home, sizes in self.homes.all.items() if home.tier == "hbm")
        on_gpu += self.on_cpu.kept_bytes(self.model) + self._tied
        on_cpu, remedy = self.weights_on_cpu, "lower gpu_layers, or raise cpu_moe; auto chooses what fits"
        found = [Held("hbm", "weights", on_gpu, remedy=remedy, kind="weights")]
        if self.evicted:
            resident = min(on_cpu, self.memory_left)
            found += [Held("dram", "weights", resident, kind="weights")]
            found += [Held(self.file, "file of the weights", on_gpu + on_cpu, kind="weights")] * (
                on_cpu > resident
            )
        else:
            found += [Held("dram", "weights", on_cpu, pinned=not self.strategy.mapped, kind="weights")]
        return (*found, *self.held_beside)

    @cached_property
    def held_beside(self) -> tuple[Held, ...]:
        """What is needed beside the weights."""
        model, batch = self.model, self.workload.batch_size
        element = self.cache.element_bytes(model.dtype_bytes) / model.dtype_bytes
        on_cpu, on_gpu = self.on_cpu.cache_bytes(model, self.cells)
        state, remedy = batch * model.state_bytes, "lower ubatch_size"
        return (
            cache_term("hbm", round(batch * on_gpu * element) + state),
            *([cache_term("dram", round(batch * on_cpu * element))] if on_cpu else []),
            Held("hbm", "buffers of the graph", self.buffers.on_gpu, remedy=remedy),
            Held("dram", "buffers of the graph", self.buffers.on_host, pinned=True, remedy=remedy),
            Held("hbm", _CONTEXT, _CONTEXT_BYTES),
            system_memory(self.machine),
        )

    def cells(self, window: int | None = None) -> int:
        """Return the tokens of a sequence for which the cache of a layer has room."""
        most = self.workload.max_context
        least = most if window is None else min(most, window + self.strategy.ubatch_size)
        return -(-least // _CELLS) * _CELLS

    @cached_property
    def buffers(self) -> GraphBuffers:
        """Buffers in which a graph keeps what it computes."""
        own, work = self.strategy, self.workload
        tokens = min(own.ubatch_size, work.batch_size * (work.prompt_length + work.output_length))
        brings = own.op_offload and tokens >= _LEAST
        return GraphBuffers(self.model, self.on_cpu, tokens, work.batch_size, self.cells, brings)

    @property
    def spare(self) -> int:
        """Memory of the GPU that is left beyond what ``--fit`` leaves [B]; below zero if it is too small."""
        held = sum(one.size for one in self.held if one.tier == "hbm")
        display = DISPLAY if self.machine.accelerator.has_display else 0
        return self.machine.tiers["hbm"].capacity - held - display - _MARGIN

    def micro_batches(self, forward: ForwardPass) -> Sequence[tuple[Sequences, ...]]:
        """Return the parts of a pass that are computed at once."""
        return VllmEngine(self.strategy.ubatch_size).chunks(forward.batch)

    @cached_property
    def stage_timings(self) -> tuple[PassTimings, ...]:
        """GPU times of the modules for any pass."""
        machine, model, modules = self.machine, self.model, self.modules
        return (
            GgmlTimings(machine=machine, model=model, modules=modules, zero3=False, cache=self.cache_form),
        )
