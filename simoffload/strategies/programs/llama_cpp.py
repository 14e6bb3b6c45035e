"""llama.cpp: layers, or the experts of layers, that the CPU computes from host memory.

Read in llama.cpp@0c1e5709 (version 0.5.0; src/llama-model.cpp, src/llama-mmap.cpp, common/arg.cpp): the last
``gpu_layers`` of all layers and the head are on the GPUs; embeddings are in host memory. Without any number
it chooses itself (``hooks/cpu_placement.py``).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from simoffload.bisection import first_that_holds
from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape, Sequences, has_gguf, in_gguf
from simoffload.results import Change
from simoffload.strategies.authoring import HookedPlan, HookedStrategy
from simoffload.strategies.base import (
    Description,
    Drafting,
    EvidenceBasis,
    Held,
    Homes,
    Placement,
    Placements,
    Plan,
    ProgramTraits,
    SizeEdits,
    StorageTier,
    Strategy,
    Tunable,
    Tunables,
)
from simoffload.strategies.cache.kv_cache import CacheEngine
from simoffload.strategies.divided import DividedModel, divide
from simoffload.strategies.hooks.cpu_placement import CpuPlacement, Overrides, Split, SplitMode, fitted
from simoffload.strategies.hooks.device_memory import MARGIN, DeviceMemory, context_bytes, rooms
from simoffload.strategies.hooks.on_cpu import CpuSettings, OnCpu
from simoffload.strategies.passes.pass_writer import ForwardPass, Hook
from simoffload.strategies.passes.timing import GgmlTimings, PassTimings
from simoffload.strategies.programs.vllm_engine import VllmEngine
from simoffload.units import plural
from simoffload.workload import Inference

LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]
Layers = Annotated[int, Field(strict=True, ge=0, le=10_000)]


class LlamaCpp(HookedStrategy):
    """A LlamaCpp strategy runs llama.cpp: some layers, or their experts, are on the CPU, others on GPUs."""

    traits: ClassVar = ProgramTraits(
        title="llama.cpp",
        evidence="llama_cpp",
        formats=("q8_0", "q6_k", "q4_k_m"),
        smaller=("q3_k_m", "q2_k", "iq2_xxs", "iq1_m"),
        loads=has_gguf,
        spans_hosts=False,
        gpu_keys=("num_gpus",),
        on_cpu=True,
        rates_prompts=True,
        drafting=Drafting(("draft_model", "mtp", "ngram"), vocabulary=128, exported=True),
    )
    cache_engine: ClassVar = CacheEngine("llama.cpp", formats=("int8", "int4"))

    kind: Literal["llama_cpp"] = "llama_cpp"
    ranks: Literal[1] = 1
    split_mode: SplitMode = "layer"
    """How several GPUs divide the model (``-sm``): each has layers of its own."""
    num_gpus: Annotated[int, Field(strict=True, ge=0, le=16)] = 1
    """Number of GPUs that its process uses (``-dev``); with 0 the CPU computes everything (``-dev none``)."""
    tensor_split: Split = ()
    """Parts of the layers on each GPU (``-ts``), such as [3, 1]; by default those of their free memory."""
    gpu_layers: Literal["auto", "all"] | Layers = "auto"
    """Number of layers on the GPUs, the head among them (``-ngl``); auto: as ``--fit`` chooses."""
    gpu_layers_draft: Literal["all"] | Layers = "all"
    """Number of layers on the GPUs of a model that proposes tokens (``-ngld``)."""
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
    """Number of threads of the CPU (``-t``); by default one for each core, on which more take turns."""
    batch_size: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 2048
    """Most tokens that are given to the program at once (``-b``)."""
    ubatch_size: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 512
    """Most tokens that are computed at once (``-ub``)."""
    op_offload: bool = True
    """Whether weights are copied to the GPU for 32 tokens and more (``--no-op-offload``: no)."""

    @property
    def gpus(self) -> int:
        """Number of GPUs that the process uses; at least that of the machine with the least of them."""
        return max(1, self.num_gpus)

    def sizes(self, batch_size: int = 1) -> SizeEdits:
        """Return the edits to other batches, and to numbers of GPUs, where ``--fit`` places layers anew."""
        anew = {} if self.chooses else _CHOSEN
        return super().sizes(batch_size)._replace(gpus=lambda gpus: _edits({"num_gpus": gpus, **anew}))

    @property
    def chooses(self) -> bool:
        """Whether the program itself chooses what is on the GPU: ``--fit`` does nothing if any is given."""
        return all(getattr(self, key) == value for key, value in _CHOSEN.items())

    @property
    def mapped(self) -> bool:
        """Whether weights on the CPU are pages of the file."""
        return "mmap" in self.load_mode or self.load_mode == "auto"

    @property
    def evicted(self) -> bool:
        """Whether pages of the file leave memory that is short, which locked ones do not."""
        return self.mapped and "mlock" not in self.load_mode

    @property
    def description(self) -> Description:
        """The program that the exported command starts, and the cache."""
        return super().description._replace(program="llama.cpp", on_gpus=self.num_gpus > 0)

    @classmethod
    def instead(
        cls, _other: Strategy, model: ModelShape, workload: Any, machine: Machine, gpus: int
    ) -> Iterator[tuple[Tunable, ...]]:
        """Yield the program on a personal machine, with what it chooses to compute on the CPU: its file
        mapped where memory has room for all of it, and loaded where it has room for what the CPU computes."""
        if not machine.is_personal or gpus > machine.gpus_per_node or not isinstance(workload, Inference):
            return
        try:
            plan = cls(num_gpus=gpus).plan(model, workload, machine)
        except InputError:  # in weights of another program
            return
        memory, text = plan.memory, f"llama.cpp with {plan.on_cpu.phrase(model)}"
        written: dict[str, Any] = {"kind": "llama_cpp"} | ({"num_gpus": gpus} if gpus > 1 else {})
        loads = bool(memory.file) and memory.weights_on_cpu <= memory.left
        maps = not loads or memory.left >= memory.model.weight_bytes
        forms = [Change("placement", text, (Edit(("strategy",), written),))] if maps else []
        if loads and memory.weights_on_cpu:
            loaded = Edit(("strategy",), {**written, "load_mode": "none"})
            key = "loaded" if maps else ""
            forms.append(Change("placement", f"{text}, loaded (-lm none)", (loaded,), key=key))
        yield from ((Tunable("division", (one,)),) for one in forms)

    def homes(self, model: ModelShape, machine: Machine) -> Homes:
        """Return the homes of what the settings name, of which ``auto`` is all on the GPU."""
        return self._named(model, machine).homes(model)

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
        if self.tensor_split and len(self.tensor_split) != self.num_gpus:
            text = f"has {plural(len(self.tensor_split), 'number')}, but num_gpus is {self.num_gpus}"
            raise InputError.at("strategy.tensor_split", f"{text}; give one for each GPU")
        if self.num_gpus > machine.gpus_per_node:
            text = f"one process uses the GPUs of one host, which has {machine.gpus_per_node}; lower it"
            raise InputError.at("strategy.num_gpus", text)
        if self.num_gpus == 0 and (own := self._on_cpu_alone()) != self:
            return own.plan(model, workload, machine)
        cache, named = self.cache_of(model, workload, machine), self._named(model, machine)

        def placed(on_cpu: CpuPlacement) -> LlamaPlan:
            homes, unused = on_cpu.homes(model), tuple(named.unused(model))
            return LlamaPlan(model, workload, machine, self, homes, cache, unused, on_cpu=on_cpu)

        if self.chooses:
            key = (self, workload, machine.tiers["hbm"].capacity, machine.accelerator.has_display)
            named = fitted(named, model, lambda one: placed(one).memory.spare, key)
        plan = placed(named)
        pages = tuple(plan.memory.page_warnings)
        return replace(plan, warnings=(*plan.warnings, *pages)) if pages else plan

    def _on_cpu_alone(self) -> Self:
        """Return the same without a GPU. Raises InputError for layers that are to be on one."""
        if self.gpu_layers not in ("auto", 0) or self.override_tensor:
            key = "override_tensor" if self.override_tensor else "gpu_layers"
            text = "num_gpus is 0: no GPU has layers; remove it, or set num_gpus to 1"
            raise InputError.at(f"strategy.{key}", text)
        return self.model_copy(update={"gpu_layers": 0, "kv_offload": False, "op_offload": False})

    def _named(self, model: ModelShape, machine: Machine) -> CpuPlacement:
        """Return the placement that the settings name, of which ``auto`` is all on the GPUs."""
        free = [one - context_bytes(machine) for one in rooms(machine, self.gpus)]
        begin = CpuPlacement(networks=self.cpu_ffn, attends=not self.kv_offload)
        gpus = dict(zip(self._devices(machine), self.tensor_split or free, strict=True))
        return begin.named(model, self.gpu_layers, self.cpu_moe, self.override_tensor, gpus)

    def _devices(self, machine: Machine) -> list[str]:
        """Return the names of its GPUs."""
        return [f"{machine.accelerator.ggml_name}{gpu}" for gpu in range(self.gpus)]

    def tunables(self, _machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield where the weights are, and with a plan larger batches, pinned weights and other caches."""
        why = "gpu_layers, cpu_moe and cpu_ffn say what the CPU computes; auto is what fits"
        yield Placements(now=lambda: Placement("hbm"), refusal=why)
        if plan is None:
            return
        assert isinstance(plan, LlamaPlan)
        fit = Change("setting", "placement chosen by --fit", _edits(_CHOSEN), key="fit")
        if not self.chooses:
            yield Tunable("memory", [fit])
        yield Tunable("setting", [*([] if self.chooses else [fit]), *self._settings(plan)])
        yield from self.cache_tunables(plan)

    def _settings(self, plan: LlamaPlan) -> Iterator[Change]:
        tokens = plan.workload.batch_size * plan.workload.prompt_length
        cores = plan.machine.host.cpu_optimizer.cores.value

        def tight(count: int) -> bool:
            other = self.model_copy(update={**_CHOSEN, "cpu_moe": count})
            memory = other.plan(plan.model, plan.workload, plan.machine).memory
            return min(memory.spare) >= _TIGHT - MARGIN

        least = first_that_holds(range(len(plan.on_cpu.experts)), tight)
        if least is not None and least != self.cpu_moe:
            text = f"cpu_moe {least}: experts of {least} layers on the CPU, and less of the GPU is left free"
            yield Change("setting", text, _edits({**_CHOSEN, "cpu_moe": least}), key="cpu-moe")
        if self.threads is not None and self.threads != cores:
            text = f"threads {self.threads} → {cores}, one for each core"
            yield Change("setting", text, _edits({"threads": None}), key="threads")
        for size in (1024, 2048, 4096):
            if self.ubatch_size < min(size, tokens):
                sizes = {"ubatch_size": size, "batch_size": max(size, self.batch_size)}
                text = f"ubatch_size {self.ubatch_size} → {size}"
                yield Change("setting", text, _edits(sizes), key=f"ubatch-{size}")
        if self.mapped:
            text = "load_mode none: weights on the CPU in pinned memory, not mapped"
            yield Change("setting", text, _edits({"load_mode": "none"}), key="load-mode-none")

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return the command that serves the model."""
        assert isinstance(plan, LlamaPlan)
        model, batch = plan.model, plan.workload.batch_size
        kind = f"-{model.quantization.upper()}" if model.quantization else ""
        cache = {"int8": "q8_0", "int4": "q4_0"}.get(plan.cache.plain.format or "")
        sizes, some = (self.batch_size, self.ubatch_size), self.num_gpus > 0
        devices = ",".join(self._devices(plan.machine)) if some else "none"
        options = {
            f"-dev {devices}": self.num_gpus < plan.machine.gpus_per_node,
            f"-ts {','.join(f'{one:g}' for one in self.tensor_split)}": bool(self.tensor_split),
            f"-ngl {self.gpu_layers}": some and self.gpu_layers != "auto",
            "-cmoe": self.cpu_moe == "all",
            f"-ncmoe {self.cpu_moe}": isinstance(self.cpu_moe, int),
            f"-ncffn {self.cpu_ffn}": self.cpu_ffn > 0,
            f"-ot {shlex.quote(','.join(self.override_tensor))}": bool(self.override_tensor),
            f"-lm {self.load_mode}": self.load_mode != "auto",
            "-nkvo": some and not self.kv_offload,
            f"-t {self.threads}": self.threads is not None,
            "--no-op-offload": some and not self.op_offload,
            f"-b {sizes[0]} -ub {sizes[1]}": sizes != (2048, 512),
            f"-ctk {cache} -ctv {cache} -fa on": cache is not None,
            f"-np {batch}": batch > 1,
            **self._speculation(plan),
        }
        command = f"llama-server -m {model.unquantized_name}{kind}.gguf -c {batch * plan.memory.cells()}"
        given = " ".join(option for option, used in options.items() if used)
        return {"llama-server.sh": f"{command} {given}".rstrip() + "\n"}

    def _speculation(self, plan: LlamaPlan) -> dict[str, bool]:
        """Return the options of speculative decoding (common/arg.cpp), all of which apply."""
        asked, draft, most = plan.workload.speculation, plan.model.draft_model, self.gpu_layers_draft
        if asked is None:
            return {}
        count = asked.num_speculative_tokens
        if asked.method == "ngram":
            return {f"--spec-type ngram-mod --spec-ngram-mod-n-max {count}": True}
        if draft is None:
            return {f"--spec-type draft-mtp --spec-draft-n-max {count}": True}
        kind = f"-{draft.quantization.upper()}" if draft.quantization else ""
        files = f"--spec-type draft-simple -md {draft.unquantized_name}{kind}.gguf"
        return {f"{files} --spec-draft-n-max {count}": True, f"-ngld {most}": most != "all"}


@dataclass(frozen=True)
class LlamaPlan(HookedPlan):
    """A LlamaPlan is the plan of a model of which the CPU computes a part."""

    strategy: LlamaCpp
    on_cpu: CpuPlacement = field(kw_only=True)
    """Modules that the CPU computes."""

    fused = True
    """Whether kernels are fused: always, as llama.cpp has its own."""

    @property
    def driven(self) -> int:  # type: ignore[override]  # given by the options
        """Number of GPUs that the process drives."""
        return self.strategy.gpus

    @cached_property
    def divided(self) -> DividedModel:
        """The model, whose projections are products of their own."""
        return divide(self.model, tensor=1, pipeline=1, fused=False)

    @property
    def basis(self) -> EvidenceBasis:
        """Numbers on which its times rest: those of products on the CPU among them."""
        products, kernels = self.machine.host.products, self.machine.accelerator.llama_kernels
        found = super().basis._replace(uncompared=(*self.memory.uncompared, *self.speculates))
        rates = kernels.deciding(experts=self.model.num_experts > 0)
        return found._replace(cpu_costs=products.deciding, gpu_rates=rates)

    @cached_property
    def cpu_settings(self) -> CpuSettings:
        """Threads of the CPU, and when weights are copied to the GPU or read from the file."""
        own, memory, cores = self.strategy, self.memory, self.machine.host.cpu_optimizer.cores.value
        return CpuSettings(
            threads=own.threads or cores,
            cores=cores,
            least=memory.least,
            pinned=memory.pinned,
            pages=memory.pages,
            file=self.file,
            alone=own.num_gpus == 0,
        )

    @property
    def file(self) -> str:
        """Tier of the file: the one that is named, or the first one with drives; "" without any."""
        tiers = self.machine.tiers
        return self.strategy.file or next((name for name, one in tiers.items() if one.row.has_files), "")

    @cached_property
    def memory(self) -> DeviceMemory:
        """What its placement needs on each device."""
        own, size = self.strategy, self.model.dtype_bytes
        return DeviceMemory(
            model=self.model,
            workload=self.workload,
            machine=self.machine,
            placement=self.on_cpu,
            homes=self.homes,
            cache_element=self.cache.element_bytes(size) / size,
            ubatch_size=own.ubatch_size,
            least=_LEAST if own.op_offload else None,
            pinned=not own.mapped,
            file=self.file if own.evicted else None,
            draft=tuple(self._held_by_draft),
        )

    def draft_plan(self, drafter: ModelShape, workload: Inference) -> LlamaPlan:
        """Return the plan of a model that proposes tokens, with its own number of layers on the GPU."""
        own = {
            **_CHOSEN,
            "gpu_layers": self.strategy.gpu_layers_draft,
            "num_gpus": min(1, self.strategy.num_gpus),
        }
        return self.strategy.model_copy(update=own).plan(drafter, workload, self.machine)

    @property
    def held(self) -> tuple[Held, ...]:
        """Weights, cache and buffers of a graph, of the fullest GPU, and what the systems take."""
        held, row = self.memory.held, self.machine.row
        return held if self.strategy.num_gpus else tuple(one for one in held if not row(one.tier).is_gpu)

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


_LEAST = 32
"""Tokens from which on weights in host memory are copied to the GPU (``GGML_OP_OFFLOAD_MIN_BATCH``)."""
_CHOSEN: dict[str, Any] = {"gpu_layers": "auto", "cpu_moe": None, "cpu_ffn": 0} | dict.fromkeys(
    ("override_tensor", "tensor_split"), ()
)
"""Values of the keys with which ``--fit`` chooses the placement."""
_TIGHT = 256 << 20
"""Memory of a GPU [B] that is left free where less than what ``--fit`` leaves is tried: our choice."""


def _edits(keys: Mapping[str, Any]) -> tuple[Edit, ...]:
    return tuple(Edit.at(f"strategy.{key}", value) for key, value in keys.items())
