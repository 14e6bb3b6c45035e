"""vLLM, which may offload weights to host memory: read in place over the link (UVA), or prefetched by layer.

Source: vLLM 0.33, ``model_executor/offloader/uva.py`` and ``prefetch.py``, ``config/offload.py``.

* UVA: the parameters of the layers, in order, until ``cpu_offload_gb`` of each GPU is spent, stay in pinned
  host memory, which kernels read directly: nothing is copied or prefetched. A kernel takes the longer of its
  own time and the transfer of its weights, at a share of the rate of pinned copies. No cache keeps what was
  read, so that every tile of rows of a product reads the weights again, and every token those of a norm:
  2,048 tokens with 8 GiB of Llama-3.1-8B took 1.42 s on an H200, 8.3 times the 171 ms of a decode step.
* Prefetch: of each ``offload_group_size`` layers the last ``offload_num_in_group`` are offloaded. When one of
  them has been computed, the copy of the one ``offload_prefetch_step`` later begins on a stream of its own,
  into the slot that was released; the last ones copy the first of the next pass, and the pass ends with these
  copies (``join_after_forward``).
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate
from shlex import quote
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine, in_dram, in_hbm
from simoffload.models import FORMATS, ModelShape, Module, Parameter, stored_bytes
from simoffload.results import Change, Facts, HeldKind
from simoffload.strategies.base import (
    ROUNDING,
    SERVED,
    SERVED_OTHERS,
    AnyTier,
    Description,
    Drafting,
    EvidenceBasis,
    Held,
    Home,
    Placement,
    Placements,
    Plan,
    Strategy,
    Tunable,
    Tunables,
    memory_tunables,
    pinned_rounding,
)
from simoffload.strategies.cache.hot_rows import options as hot_buffer_options
from simoffload.strategies.cache.kv_cache import VLLM
from simoffload.strategies.divided import Degrees, DividedModel
from simoffload.strategies.hooks.staging import ReadInPlace, readings, size_of
from simoffload.strategies.passes.pass_writer import STAGING, ForwardPass, Hook, Part, PassWriter
from simoffload.strategies.programs.tensor_parallel import (
    DividedStrategy,
    TensorParallelPlan,
    arrangements,
    loading_advice,
    without_offloading,
)
from simoffload.strategies.programs.vllm_engine import (
    BLOCKS,
    LEAST_TOKENS,
    UTILIZATION,
    EngineCode,
    VllmEngine,
    cache_groups,
    chosen_graph,
    connector_command,
    default_tokens,
    fuller,
    needed_blocks,
    runs_v1,
    unserved_in_place,
)
from simoffload.strategies.requirements import check_capability, check_dtype, lacks_vllm
from simoffload.units import plural
from simoffload.workload import Inference

Count = Annotated[int, Field(strict=True, ge=1, le=100_000)]


class Vllm(DividedStrategy):
    """A Vllm strategy runs vLLM: GPUs hold the weights together, and host memory those that are offloaded."""

    traits: ClassVar = DividedStrategy.traits._replace(
        title="vLLM",
        evidence=SERVED,
        formats=("fp8", "int4-g128"),
        drafting=Drafting(("draft_model", "mtp", "ngram"), exported=True),
        measured_updates=True,
    )
    cache_engine: ClassVar = VLLM

    kind: Literal["vllm"] = "vllm"
    enforce_eager: Annotated[bool, Field(strict=True)] = False
    """Whether the host launches each kernel (``--enforce-eager``), instead of replaying them from CUDA
    graphs."""
    max_num_batched_tokens: Annotated[int, Field(strict=True, ge=1, le=10**8)] | None = None
    """Number of tokens that vLLM computes at once at most: a prefill of more is computed in chunks; None: as
    ``vllm serve`` chooses, 16,384 with 160 GiB of GPU memory and more, 8,192 with 70 GiB and more except on
    an A100, else 2,048."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = UTILIZATION
    """Fraction of the GPU's memory that vLLM fills, which must be free when it starts; less by default where
    a display or CUDA graphs take more than the rest of a small GPU."""
    kv_blocks: Annotated[int, Field(strict=True, ge=1, le=10**9)] | None = None
    """Number of blocks that vLLM's cache has on each GPU (``--num-gpu-blocks-override``), each of 16 tokens,
    or more beside recurrent layers and compressed rows, in the layers of one group: all layers, or as many as
    have full attention in models with sliding layers, too; None: as many as fit."""
    max_cudagraph_capture_size: Annotated[int, Field(strict=True, ge=1, le=100_000)] | None = None
    """Most tokens of a step whose kernels are in CUDA graphs; the host launches those of a step with more.
    None: as vLLM chooses, 512, and 1,024 for gpt-oss."""

    cpu_offload_gb: Annotated[float, Field(ge=0, le=1e6)] = 0
    """Weights of each GPU that stay in host memory and are read over the link by kernels [GiB]."""
    offload_group_size: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 0
    """Number of layers of a group, of which the last are offloaded and prefetched; 0: no prefetching."""
    offload_num_in_group: Count = 1
    """Number of offloaded layers at the end of each group."""
    offload_prefetch_step: Count = 1
    """Number of offloaded layers by which a copy is ahead, and of slots for them on the GPU."""
    offload_tier: AnyTier = "dram"
    """Tier of the prefetched layers; any other than host memory is a what-if that vLLM does not have."""

    @property
    def without_vllm(self) -> str:
        """Settings that do without vLLM."""
        return "strategy.kind to deepspeed, transformers or accelerate"

    @property
    def _offloads(self) -> bool:
        return bool(self.cpu_offload_gb or self.offload_group_size)

    def engine(self, model: ModelShape, workload: Inference, machine: Machine) -> VllmEngine:
        """Return the limits of vLLM's engine, which runs model runner V1 always with weights in host memory.

        Raises InputError for those that vLLM refuses.
        """
        if self.kv_blocks is not None and not in_hbm(self.kv_cache.plain.tier):
            text = f"are of a cache in HBM, and kv_cache.tier is {self.kv_cache.plain.tier}; remove the key"
            raise InputError.at("strategy.kv_blocks", text)
        stated = "gpu_memory_utilization" in self.model_fields_set
        alone = self.tensor_parallel_size * self.pipeline_parallel_size == 1
        v1 = runs_v1(model) or self._offloads
        return VllmEngine.of(
            model,
            machine,
            workload,
            tokens=self.max_num_batched_tokens,
            utilization=self.gpu_memory_utilization if stated else None,
            blocks=self.kv_blocks,
            captured=self.max_cudagraph_capture_size,
            code=EngineCode(compiled=not self.enforce_eager, alone=alone, v1=v1),
            connector=self.kv_cache.connector,
            element=self.kv_cache.plain.element_bytes(model.dtype_bytes),
            tensor=self.tensor_parallel_size,
        )

    def check_blocks(
        self,
        model: ModelShape,
        *,
        sequences: int,
        length: int,
        size: int | None = None,
        remedy: str = BLOCKS,
    ) -> None:
        """Raise InputError for fewer blocks of ``size`` tokens than sequences of so many tokens need, on
        whatever machine; ``remedy`` as in ``needed_blocks``."""
        groups = cache_groups(
            model,
            step=self.max_num_batched_tokens or max(sequences, LEAST_TOKENS),
            tensor=self.tensor_parallel_size,
        )
        needed_blocks(
            groups, sequences=sequences, length=length, stated=self.kv_blocks, size=size, remedy=remedy
        )

    def served(self, model: ModelShape, machine: Machine) -> ModelShape:
        """Return the model as vLLM runs it. Raises InputError for a model or a GPU that vLLM refuses."""
        check_dtype(model)
        form = self.cache_for(model).format
        check_capability(VLLM.program, model, machine, cache_format=form, without=self.without_vllm)
        buffer, served = self.kv_cache.hot_buffer, model.as_served()
        return served if buffer is None else buffer.applied(served)

    def engine_options(self, plan: Plan) -> tuple[str, ...]:
        """Return the options of ``vllm serve`` for limits that are not its defaults."""
        assert isinstance(plan, TensorParallelPlan)
        engine = plan.engine
        tokens = None if engine is None else engine.tokens
        usual = not plan.compiled or plan.captured == chosen_graph(plan.model, plan.workload.batch_size)
        named: dict[str, float | None] = {
            "max-num-batched-tokens": None if tokens == default_tokens(plan.machine) else tokens,
            "num-gpu-blocks-override": self.kv_blocks,
            "max-cudagraph-capture-size": None if usual else plan.captured,
        }
        if engine is not None and engine.utilization != UTILIZATION:
            named["gpu-memory-utilization"] = engine.utilization
        return tuple(f"--{name} {value}" for name, value in named.items() if value is not None)

    def engine_tunables(self, plan: TensorParallelPlan) -> Iterator[Tunable]:
        """Yield fewer tokens at once, and more of the GPU's memory."""
        engine, least = plan.engine, max(plan.workload.batch_size, _LEAST_TOKENS)
        if engine is not None:
            halves = [now for part in range(1, 10) if (now := engine.tokens >> part) >= least]
            key = "max_num_batched_tokens"
            yield from memory_tunables(key, ("strategy", key), engine.tokens, halves)
            key, most = "gpu_memory_utilization", engine.most(plan.model, plan.machine)
            larger = [one for one in fuller(plan.machine) if engine.utilization < one <= most]
            yield from memory_tunables(key, ("strategy", key), engine.utilization, larger)

    @property
    def options(self) -> OffloadOptions:
        """vLLM's options for offloading. Raises InputError for those that contradict each other."""
        group, number = self.offload_group_size, self.offload_num_in_group
        if group and self.cpu_offload_gb:
            text = "offload_group_size prefetches weights, cpu_offload_gb reads them in place; set one to 0"
            raise InputError.at("strategy.offload_group_size", text)
        if group and number > group:
            text = f"{number} is more than offload_group_size {group}"
            raise InputError.at("strategy.offload_num_in_group", text)
        if not in_dram(self.offload_tier) and not group:
            text = f"only prefetched layers can be on {self.offload_tier}: kernels read weights in dram"
            raise InputError.at("strategy.offload_tier", f"{text}; set offload_group_size, or leave it out")
        step = self.offload_prefetch_step
        return OffloadOptions(int(self.cpu_offload_gb * _GIB), group, number, step, self.offload_tier)

    def tunables(self, machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield HBM, host memory, and if layers are prefetched, all tiers; placements of the cache, limits of
        vLLM's engine, other values of ``cpu_offload_gb``, and prefetching."""
        now = Placement(self.offload_tier if self._offloads else "hbm")
        others = machine.tiers if self.offload_group_size else ("dram",)
        where = "host memory" if machine.tiers[self.offload_tier].row.is_host else "on drives"
        yield Placements(
            now=lambda: now,
            possible=tuple(dict.fromkeys((now, Placement("hbm"), *map(Placement, others)))),
            edits=lambda other: () if other == now else self._elsewhere(other.weights),
            refusal="set offload_group_size, as only prefetched layers can be elsewhere than in dram",
            name="vLLM offload" if self._offloads else "vLLM",
            phrase=f"{{}} in GPU and {where}" if self._offloads else self.in_gpus,
        )
        if not isinstance(plan, VllmPlan):
            return
        yield from self.cache_tunables(plan)
        yield from self.engine_tunables(plan)
        if not self.offload_group_size:  # larger values for HBM, then smaller ones for host memory
            most = max(one.weight_bytes for one in plan.divided.stages) // _GIB + 1
            key, size = "cpu_offload_gb", self.options.budget // _GIB
            values = range(size + 1, most + 1), range(size - 1, -1, -1)
            yield from memory_tunables(key, ("strategy", key), size, *values)
        yield Tunable("setting", self._prefetched(plan.model))

    def _elsewhere(self, tier: str) -> tuple[Edit, ...]:
        """Return the edits that offload to another tier, all layers where none is yet, or nothing if it is
        HBM."""
        if not self._offloads:
            return (Edit.at("strategy.offload_group_size", 1),)
        if not in_hbm(tier):
            return (Edit.at("strategy.offload_tier", tier),)
        edits = Edit.at("strategy.cpu_offload_gb", 0), Edit.at("strategy.offload_group_size", 0)
        return edits if in_dram(self.offload_tier) else (*edits, Edit.at("strategy.offload_tier", "dram"))

    @classmethod
    def instead(
        cls, other: Strategy, model: ModelShape, workload: Any, machine: Machine, gpus: int
    ) -> Iterator[tuple[Tunable, ...]]:
        """Yield GPUs that hold the weights together; a number of GiB of the weights on each GPU, with the
        others in pinned host memory, where kernels read them; and a number of layers of each GPU, with the
        others prefetched from there."""
        held = without_offloading(cls, other, model, workload, machine)
        yield () if lacks_vllm(machine) else (Tunable("baseline", held),)
        total = model.weight_bytes // gpus // _GIB + 1

        def division(sizes: Mapping[str, float]) -> Tunable:
            several = {key: size for key, size in sizes.items() if size != 1}
            fills = sizes.get("gpu_memory_utilization")
            filled = f", which fills {fills:g} of their memory" if fills else ""

            def change(size: int) -> Change:
                section = {"kind": "vllm", **several, "cpu_offload_gb": size}
                offloaded = f"with cpu_offload_gb {size}" if size else "without offload"
                description = f"vLLM on {plural(gpus, 'GPU')} {offloaded}{filled}"
                return Change("placement", description, (Edit(("strategy",), section),))

            return Tunable("division", range(total + 1), change)

        sizes = tuple(arrangements(gpus, machine))
        more: list[dict[str, float]] = [
            {**one, "gpu_memory_utilization": most} for most in fuller(machine)[-1:] for one in sizes
        ]
        yield (*map(division, sizes), *map(division, more))
        yield tuple(prefetching(model, one, gpus=gpus) for one in sizes)

    def _prefetched(self, model: ModelShape) -> Iterator[Change]:
        """Yield prefetching of at least as many bytes as kernels read in place, and of one slot more."""
        layers = model.num_hidden_layers // self.pipeline_parallel_size
        inside = sum(count * stored_bytes(layer, model) for layer, count in model.kinds)
        each = inside // (model.num_hidden_layers * self.tensor_parallel_size)
        if not self.cpu_offload_gb or layers < 2 or not each:
            return
        least = -(-self.options.budget // each)
        for slots in (1, 2):
            offloaded = min(least + slots, layers)
            group, number = group_of(layers, offloaded)
            if slots <= offloaded:
                keys = {"cpu_offload_gb": 0, "offload_group_size": group, "offload_num_in_group": number}
                keys |= {"offload_prefetch_step": slots}
                edits = tuple(Edit.at(f"strategy.{key}", value) for key, value in keys.items())
                text = f"{offloaded} of {layers} layers prefetched ({plural(slots, 'slot')}) instead of read"
                yield Change("setting", f"{text} in place", edits, key=f"prefetch-{slots}")

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> VllmPlan:
        """Apply the strategy. Raises InputError for options that vLLM refuses, and for a model that cannot be
        divided equally."""
        model = self.served(model, machine)
        plan = VllmPlan(
            model=model,
            workload=workload,
            machine=machine,
            degrees=self.degrees,
            compiled=not self.enforce_eager,
            cache=self.cache_of(model, workload, machine),
            engine=self.engine(model, workload, machine),
        )
        if _OFFLOADING & self.model_fields_set:
            given = {one.name: getattr(plan, one.name) for one in fields(plan)}
            plan = offloading = VllmOffloadPlan(**given, options=self.options)
            _ = offloading.offloaded  # raises for groups that do not fit the layers
        _ = plan.divided  # raises for degrees that do not divide the model
        return plan

    @property
    def description(self) -> Description:
        """The program that the exported command starts, and the cache."""
        return super().description._replace(program="vLLM")

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return the command that serves the model; none for layers on a tier from which vLLM has none."""
        assert isinstance(plan, VllmPlan)
        if not plan.machine.row(self.offload_tier).is_dram:
            return {}
        given = [f"--cpu-offload-gb {self.cpu_offload_gb:g}"] if self.cpu_offload_gb else []
        if self.offload_group_size:
            keys = ("offload_group_size", "offload_num_in_group", "offload_prefetch_step")
            given = [f"--{key.replace('_', '-')} {getattr(self, key)}" for key in keys]
        before, more = plan.command
        command = vllm_command(plan, self.degrees, *given, *more, *self.engine_options(plan))
        return {"vllm-serve.sh": before + command}


@dataclass(frozen=True)
class VllmPlan(TensorParallelPlan):
    """A VllmPlan is a plan of a model that vLLM runs on GPUs that hold its weights together."""

    fewer: ClassVar = "raise tensor_parallel_size, pipeline_parallel_size or cpu_offload_gb"

    @property
    def fused(self) -> bool:
        """Whether kernels are fused: always, as vLLM has its own."""
        return True

    @property
    def drafts_first(self) -> int:
        """All tokens that were verified, also rejected ones, whose number only the GPU knows
        (``AutoRegressiveSpeculator.propose``, v1/worker/gpu/spec_decode of vLLM 0.33)."""
        return 1 + self.workload.proposed

    def draft_plan(self, drafter: ModelShape, workload: Inference) -> VllmPlan:
        """Return the plan of a model that proposes tokens, which the GPUs of a stage share."""
        return VllmPlan(
            model=drafter.as_served(),
            workload=workload,
            machine=self.machine,
            degrees=self.degrees._replace(pipeline=1),
            compiled=self.compiled,
            cache=self.cache,
        )

    @property
    def command(self) -> tuple[str, tuple[str, ...]]:
        """Lines before the command that serves the model, and its options beside those of ``Vllm``."""
        return "", ()


_MORE, _LESS = "raise cpu_offload_gb", "lower cpu_offload_gb"


@dataclass(frozen=True)
class VllmOffloadPlan(VllmPlan):
    """A VllmOffloadPlan is a plan of a model of which some weights are in host memory."""

    options: OffloadOptions = field(kw_only=True)
    fewer: ClassVar = _MORE

    @property
    def basis(self) -> EvidenceBasis:
        """The same, compared with runs that had weights in host memory if it has any."""
        found = super().basis
        return found._replace(evidence=SERVED_OTHERS) if any(map(size_of, self.offloaded)) else found

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]  # computed here
        """Also a warning about options of groups without groups."""
        options, rounds = self.options, [_ROUNDS] if self.pinned.unrounded else []
        found = (*super().warnings, *rounds, *self._moved_again)
        if options.group or options.number == options.step == 1:
            return found
        key = "offload_num_in_group" if options.number > 1 else "offload_prefetch_step"
        return (*found, f"strategy.{key} has no effect without offload_group_size: nothing is prefetched")

    def _uncompared(self) -> list[str]:
        """Return also what is said of weights in host memory: kernels of runs read some there, but none were
        prefetched."""
        if not any(map(size_of, self.offloaded)):
            return super()._uncompared()
        found = unserved_in_place(self.stored_weights, self.machine.accelerator.name)
        return [*super()._uncompared(), *(["served prefetched layers"] if self.options.group else found)]

    @property
    def command(self) -> tuple[str, tuple[str, ...]]:
        """Also the kernels of experts, and how PyTorch rounds pinned memory."""
        before = f"export {_UNROUNDED}\n" if self.pinned.unrounded else ""
        return before, ((BACKEND,) if self.repacked else ())

    @property
    def repacked(self) -> bool:
        """Whether experts have kernels that vLLM does not choose by itself on every card."""
        return bool(self.options.budget or self.options.group) and of_marlin(self.model) is not self.model

    @cached_property
    def divided(self) -> DividedModel:
        """Part of the model on one GPU of each stage. Raises InputError if there are no equal parts."""
        found = super().divided
        return found._replace(stages=tuple(map(of_marlin, found.stages))) if self.repacked else found

    @cached_property
    def pinned(self) -> PinnedWeights:
        """Pinned weights of all stages of one GPU each."""
        return PinnedWeights.of(
            [size for stage in self.offloaded for layer in stage for one in layer.values() for size in one]
        )

    @property
    def _moved_again(self) -> Iterator[str]:
        """Yield a sentence about weights that a prefill brings over the link several times."""
        times = self.weight_moves
        if times > 1:
            each = f"again for every {self.machine.accelerator.reads.rows.value} tokens of a chunk at most"
            each = f"{each}; offload_group_size copies them once for a chunk"
            if self.options.group:
                each = f"once for each of {len(self.chunks):,} chunks"
            yield f"a prefill brings weights in host memory over the link {times:,} times, {each}"

    @cached_property
    def weight_moves(self) -> int:
        """How often a prefill brings an offloaded weight over the link, on average over their bytes."""
        stored = sum(map(size_of, self.offloaded))
        if not stored or self.options.group:
            return len(self.chunks) if stored else 0
        total, rows = 0.0, self.machine.accelerator.reads.rows.value
        for chunk in self.chunks:
            tokens = sum(one.number * one.new_tokens for one in chunk)
            for stage, layers in zip(self.divided.stages, self.offloaded, strict=True):
                for modules, inside in zip(stage.layers, layers, strict=True):
                    for module in modules if inside else ():
                        read = readings(self.model, module, tokens, rows=rows)
                        total += sum(inside.get(module.name, ())) * read.touched * read.times
        return max(1, round(total / stored))

    @property
    def facts(self) -> Facts:
        """Also how often a prefill brings an offloaded weight over the link, and whether vLLM has it."""
        found = replace(super().facts, weight_moves=self.weight_moves)
        if self.machine.row(self.options.tier).is_dram or not any(map(size_of, self.offloaded)):
            return found
        return found.what_if("vLLM prefetches layers from host memory only")

    @cached_property
    def offloaded(self) -> tuple[tuple[Weights, ...], ...]:
        """Offloaded tensors of each layer of each stage. Raises InputError if no layer is in a group."""
        return tuple(map(self._of_stage, self.divided.stages))

    def _of_stage(self, stage: ModelShape) -> tuple[Weights, ...]:
        budget, group, number, step, _ = self.options
        size = stage.dtype_bytes
        by_kind = {
            kind: {
                module.name: tuple(each for one in module.parameters for _, each in one.stored_tensors(size))
                for module in kind
                if module.parameters
            }
            for kind, _ in stage.kinds
        }
        layers: tuple[Weights, ...] = stage.by_layer(by_kind.__getitem__)
        none: Weights = {}
        if not group:
            sizes = {id(one): size_of([one]) for one in by_kind.values()}
            spent = accumulate((sizes[id(one)] for one in layers), initial=0)
            return tuple(
                one if sizes[id(one)] <= budget - before else _within(budget - before, one, none)
                for before, one in zip(spent, layers, strict=False)
            )
        chosen = tuple(one if at % group >= group - number else none for at, one in enumerate(layers))
        if step > (offloaded := sum(map(bool, chosen))):
            key = "offload_prefetch_step" if offloaded else "offload_group_size"
            text = f"only {offloaded} of the {len(layers)} layers of a GPU are offloaded"
            raise InputError.at(f"strategy.{key}", f"{text}; lower it")
        return chosen

    def weights_hooks(self, _forward: ForwardPass) -> tuple[Hook, ...]:
        """Return the hook that reads offloaded weights, or copies them ahead."""
        if not any(map(size_of, self.offloaded)):
            return ()
        return (Prefetch(self) if self.options.group else ReadInPlace(self.model, self.offloaded),)

    @cached_property
    def fullest_stage(self) -> int:
        """Number of the stage with most weights on a GPU."""
        on_gpu = [
            stage.weight_bytes - size_of(inside)
            for stage, inside in zip(self.divided.stages, self.offloaded, strict=True)
        ]
        return on_gpu.index(max(on_gpu))

    @property
    def fullest(self) -> ModelShape:
        """Part of the model on the GPUs that need most memory."""
        return self.divided.stages[self.fullest_stage]

    @property
    def held_weights(self) -> Iterator[Held]:
        """Weights of the GPU that needs most, and all pinned weights of a host, or those on the tier of a
        what-if."""
        (tensor, _, data), pinned, tier = self.degrees, self.pinned, self.options.tier
        for one in super().held_weights:
            yield one._replace(size=one.size - size_of(self.offloaded[self.fullest_stage]))
        if not pinned.size:
            return
        if not self.machine.row(tier).is_dram:
            yield Held(tier, "weights", pinned.size * tensor * data, remedy=_LESS, kind="weights")
            return
        nodes, remedy = self.machine.nodes_of(self.degrees.ranks), "" if self.options.group else _LESS
        host = {"weights": pinned.size, ROUNDING: pinned.rounding}
        kinds: tuple[HeldKind, ...] = ("weights", "working")
        for (name, size), kind in zip(host.items(), kinds, strict=True):
            held = -(-size * tensor * data // nodes)
            yield Held(tier, name, held, pinned=True, remedy=remedy, kind=kind)


class Prefetch(Hook):
    """The last layers of each group are copied ahead, into slots that others have left.

    Source: vLLM 0.33, ``model_executor/offloader/prefetch.py``.
    """

    joined = ("copy",)

    def __init__(self, plan: VllmOffloadPlan) -> None:
        self._plan, self._home = plan, Home(plan.options.tier, pinned=True)
        self._staged = not plan.machine.tiers[plan.options.tier].row.is_host
        self.streams = STAGING if self._staged else ("copy",)
        step, self._following = plan.options.step, list[Mapping[int, int]]()
        for layers in plan.offloaded:
            there = [at for at, layer in enumerate(layers) if layer]
            ahead = there[step % len(there) :] + there[: step % len(there)]
            self._following.append(dict(zip(there, ahead, strict=True)))

    def holds(self) -> Iterator[Held]:
        """Yield the slots on the GPU that needs most, and two pinned buffers for layers in files."""
        options = self._plan.options
        distinct = ({id(layer): layer for layer in stage}.values() for stage in self._plan.offloaded)
        sizes = [[size_of([layer]) for layer in layers] for layers in distinct]
        slots = options.step * max(sizes[self._plan.fullest_stage])
        yield Held("hbm", "prefetch slots", slots, remedy="lower offload_prefetch_step", kind="staging")
        if self._staged:
            name, largest = "buffers of layers on their way", max(map(max, sizes))
            yield Held("dram", name, 2 * largest, pinned=True, kind="staging")

    def state(self, part: Part) -> Hashable:
        """Return how far ahead a layer copies another one, and its tensors."""
        return tuple(
            [
                (ahead[part.layer] - part.layer, id(layers[ahead[part.layer]]))
                for ahead, layers in zip(self._following, self._plan.offloaded, strict=True)
                if part.layer in ahead
            ]
        )

    def leave(self, part: Part, out: PassWriter) -> None:
        """Copy the layer that takes the slot of this one; a CUDA graph launches the copies."""
        following = self._following[out.stage_number].get(part.layer)
        if following is not None:
            weights = self._plan.offloaded[out.stage_number][following]
            sizes = [size for one in weights.values() for size in one]
            out.stage(self, sizes, self._home, layer=following, after=out.on_gpu(), call_s=0.0, label="layer")


# --------------------------------------------------------------------------------------------------
# Weights that vLLM keeps in pinned host memory: padded for the kernels that take them, rounded by PyTorch.
#
# Source: vLLM 0.33, ``layers/fused_moe/oracle/mxfp4.py``, ``layers/quantization/mxfp4.py`` and
# ``model_loader/utils.py`` in ``model_executor``.
#
# * Experts in MXFP4: Triton's kernels, the default on Hopper, wrap their weights in tensors that are no
#   parameters, and these stay on the GPU (``_swizzle_mxfp4``, ``device_loading_context``). Marlin's, the
#   default on Ampere and Ada, keep parameters, so that the exported command names them on every card. They
#   pad the width of each expert to a multiple of 128 and the hidden size to one of 256
#   (``mxfp4_round_up_hidden_size_and_intermediate_size``).
# * PyTorch rounds a pinned tensor up to a power of two, unless it is larger than the
#   ``pinned_max_round_threshold_mb`` of ``PYTORCH_ALLOC_CONF`` (from PyTorch 2.10 on).


_WIDTH, _HIDDEN = 128, 256
"""Multiples of the width of an expert and of the hidden size that Marlin's kernels take."""
_WASTED = 0.5
"""Rounding, as a share of the weights, above which the exported command turns it off (our choice)."""
_ROUNDED = 1 << 20
"""[B] up to which tensors are rounded then."""
BACKEND = "--moe-backend marlin"
"""Option of vLLM for Marlin's kernels."""
_UNROUNDED = "PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:1"
_ROUNDS = (
    "PyTorch would round pinned tensors up to powers of two, by more than half of their size in all; without "
    f"this setting they may not fit: {_UNROUNDED}"
)


def of_marlin(model: ModelShape) -> ModelShape:
    """Return the model with experts in MXFP4 as Marlin's kernels keep them; itself if it has none."""
    kinds = {layer: tuple(_padded(model, one) for one in layer) for layer, _ in model.kinds}
    if all(layer == padded for layer, padded in kinds.items()):
        return model
    groups = (one._replace(layers=tuple(kinds[layer] for layer in one.layers)) for one in model.groups)
    return replace(model, groups=tuple(groups))


def _padded(model: ModelShape, module: Module) -> Module:
    if module.parallel != "experts":
        return module
    experts, hidden = model.num_experts, model.hidden_size

    def padded(one: Parameter) -> Parameter:
        if one.storage is None or one.storage.format is not FORMATS["mxfp4"]:
            return one
        rows = one.numel // one.columns // experts
        if one is last:
            rows, columns = _up(hidden, _HIDDEN), _up(one.columns, _WIDTH)
        else:  # one or two matrices, as wide as an expert each
            rows, columns = rows // width * _up(width, _WIDTH), _up(hidden, _HIDDEN)
        return one._replace(storage=one.storage.format.stored(experts * rows, columns).as_served())

    last = [one for one in module.parameters if one.columns][-1]
    width = last.columns
    return module._replace(parameters=tuple(map(padded, module.parameters)))


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


class PinnedWeights(NamedTuple):
    """PinnedWeights are the tensors of one process in pinned memory."""

    size: int
    """Size of the tensors [B]."""
    rounding: int
    """Bytes [B] that PyTorch adds."""
    unrounded: bool
    """Whether the exported command sets a size above which PyTorch adds none."""

    @classmethod
    def of(cls, sizes: Sequence[int]) -> PinnedWeights:
        """Return what tensors of some sizes [B] occupy with the exported command."""
        size, rounding = sum(sizes), pinned_rounding(sizes)
        if rounding <= _WASTED * size:
            return cls(size, rounding, unrounded=False)
        return cls(size, pinned_rounding([one for one in sizes if one <= _ROUNDED]), unrounded=True)


# --------------------------------------------------------------------------------------------------
# Groups of layers of which vLLM prefetches some: all numbers of layers that can be offloaded, as a split.


def group_of(layers: int, count: int) -> tuple[int, int]:
    """Return the size of the smallest group of layers, and its number of offloaded ones, with which ``count``
    of ``layers`` are offloaded: the last ones of each full group, and what is left of them in the rest."""
    for group in range(1, layers + 1):
        full, rest = divmod(layers, group)
        number, more = divmod(count, full)
        if number > group - rest:
            number, more = divmod(count + group - rest, full + 1)
        if not more and 0 < number <= group:
            return group, number
    raise ValueError(f"{count} of {layers} layers cannot be offloaded")


def prefetching(model: ModelShape, sizes: Mapping[str, int], *, gpus: int) -> Tunable:
    """Return divisions by the number of layers of each GPU that stay on it, the others prefetched with two
    slots."""
    stages = sizes["pipeline_parallel_size"]
    layers = model.num_hidden_layers // stages
    several = {key: size for key, size in sizes.items() if size > 1}

    def change(resident: int) -> Change:
        offloaded, how = layers - resident, "without offload"
        section: dict[str, Any] = {"kind": "vllm", **several}
        if offloaded:
            group, number = group_of(layers, offloaded)
            keys = {"offload_group_size": group, "offload_num_in_group": number}
            keys |= {"offload_prefetch_step": min(2, offloaded)}
            section |= {key: size for key, size in keys.items() if size > 1 or key == "offload_group_size"}
            how = f"with {offloaded} of {layers} layers prefetched"
        description = f"vLLM on {plural(gpus, 'GPU')} {how}"
        return Change("placement", description, (Edit(("strategy",), section),), key="prefetch")

    return Tunable("division", range(layers, -1, -1), change)


_GIB = 1 << 30


class OffloadOptions(NamedTuple):
    """OffloadOptions are vLLM's options for offloading weights."""

    budget: int
    """Size of the weights of each GPU that kernels read in host memory [B]; 0 with groups."""
    group: int
    """Number of layers of a group; 0 without prefetching."""
    number: int
    """Number of layers at the end of each group that are offloaded."""
    step: int
    """Number of offloaded layers by which a copy is ahead."""
    tier: str = "dram"
    """Tier of the offloaded weights."""


_LEAST_TOKENS = 256
"""Fewest tokens at once that are tried to save memory: fewer than a GPU needs for its full speed; our
choice."""
_OFFLOADING = frozenset(
    {
        "cpu_offload_gb",
        "offload_group_size",
        "offload_num_in_group",
        "offload_prefetch_step",
        "offload_tier",
    }
)
"""Keys that take effect only where weights are offloaded."""
Weights = Mapping[str, tuple[int, ...]]
"""Sizes [B] of the offloaded tensors of a layer, by module."""


def _within(budget: int, sizes: Weights, none: Weights) -> Weights:
    """Return the tensors of a layer that are offloaded before ``budget`` [B] is spent, the last of which may
    exceed it; ``none`` where it is spent."""
    if budget <= 0:
        return none
    found: dict[str, tuple[int, ...]] = {}
    for name, tensors in sizes.items():
        for size in tensors:
            if budget > 0:
                found[name] = (*found.get(name, ()), size)
                budget -= size
    return found


_AT_LOADING = {"fp8": "fp8"}
"""Options of vLLM that quantize 16-bit weights at loading, by format (``Fp8OnlineLinearMethod``)."""


def vllm_command(plan: TensorParallelPlan, degrees: Degrees, *more: str) -> str:
    """Return the command that serves the model of a plan with vLLM, with ``more`` options."""
    work = plan.workload
    sizes = zip(("tensor", "pipeline", "data"), degrees, strict=True)
    options = [f"--{name}-parallel-size {size}" for name, size in sizes if size > 1]
    options += [
        f"--dtype {plan.model.dtype}",
        f"--max-model-len {max(work.prompt_length + work.output_length, work.context or 0)}",
    ]
    options += [f"--max-num-seqs {work.batch_size}", *more, *([] if plan.compiled else ["--enforce-eager"])]
    if plan.cache.format is not None:
        options.append(f"--kv-cache-dtype {plan.cache.format}")
    if plan.cache.hot_buffer is not None:
        options += hot_buffer_options(plan.cache.hot_buffer, plan.held)
    before = ""
    if (moves := plan.block_moves) is not None:
        command = connector_command(moves, plan.held, compiled=plan.compiled)
        options.append(command.option)
        before = command.before
    if (speculation := work.speculation) is not None:
        draft = plan.drafter
        method = speculation.method or ("mtp" if plan.model.draft_model is None else "draft_model")
        config: dict[str, str | int] = {
            "method": method,
            "num_speculative_tokens": speculation.num_speculative_tokens,
        }
        if draft is not None and method == "draft_model":
            config["model"] = draft.unquantized_name
        options.append(f"--speculative-config {quote(json.dumps(config))}")
    stored = plan.model.quantization
    if stored in _AT_LOADING:
        options.append(f"--quantization {_AT_LOADING[stored]}")
        stored = None
    lines = " \\\n  ".join((f"vllm serve {quote(plan.model.unquantized_name)}", *options))
    return f"{loading_advice(stored)}\n{before}{lines}\n"
