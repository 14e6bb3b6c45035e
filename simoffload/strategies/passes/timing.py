"""Durations of modules, micro-steps and the optimizer on a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from simoffload.hardware import (
    MULTIPLIED,
    Attended,
    AttentionSizes,
    DeepSpeedCosts,
    FsdpCosts,
    GgmlKernels,
    KernelWork,
    Machine,
    Path,
    Sourced,
    decode_work,
    in_dram,
    prefill_work,
    together,
)
from simoffload.models import (
    GROWING,
    CacheForm,
    ModelShape,
    Module,
    ModuleCost,
    Sequences,
    Strided,
    WeightCost,
    absorbed_kernels,
    attended_rows,
    attention_kernels,
    backward_cost,
    backward_products,
    batch_cost,
    copied_experts,
    module_cost,
    tokens_of,
    training_cost,
    weight_cost,
)
from simoffload.recent import Recent
from simoffload.schedule import Cause, HostMemory
from simoffload.units import format_flops
from simoffload.workload import Inference

if TYPE_CHECKING:
    from simoffload.models import Kernel, WeightFormat

_MOST_KERNELS = 16
"""Number of kernels of attention in transformers' eager code (our count); its other operations make views."""

EAGER_PASS = 40
"""Operations of transformers' eager code in a pass beside those of its modules, such as positions and masks.

Decode steps of two and of eight layers give the time of what is there once, 1.17 times that of a layer
(median of 13 cases, 0 to 1.5), where a layer has 62 operations and the modules before and after them have 32
(docs/measurements/engine-parts.md). Under DeepSpeed, ``pass_overhead`` has its own part in addition.
"""
TRAINED_PASS = 87
"""The same of a forward pass in training, which looks for packed sequences and makes masks: in traces of two
models the host begins the first layer after 2.04 and 1.46 times the time of a layer, of 62 operations, and
the modules before it have 21 (docs/measurements/training.md)."""


def picoseconds(seconds: float) -> int:
    """Convert a duration [s] to the engine's unit [ps], rounded."""
    return round(seconds * 1e12)


def copy_cause(*, to_device: bool, pinned: bool, tier: str = "dram") -> Cause:
    """Return the cause of copies between the GPU and host memory, by default its DRAM."""
    memory: HostMemory = "pinned" if pinned else "pageable"
    if not in_dram(tier):
        return Cause("read" if to_device else "write", tier, memory=memory)
    return Cause("host-to-gpu" if to_device else "gpu-to-host", memory=memory)


def effective_rate(path: Path, sizes: Sequence[int]) -> int:
    """Return the mean rate [B/s] of several transfers in sequence, each at the rate for its own size."""
    seconds = sum(size / path.curve.rate(size) for size in sizes)
    return max(1, int(sum(sizes) / seconds)) if seconds else 1


_COPY_ADDRESSES = 2 / 3
"""Addresses that a copy computes for each element, over those of a bias that is added in place, whose rate is
``strided_rate``: of two operands instead of three. It gives 0.52 ms for 268 million elements on an H100;
measured are 0.55 ms (docs/measurements/kv-cache.md)."""
_PASSES_OF_COPIES = 3
"""Number of times that batched products read or write an expert's weights for each token that chose it: they
copy them (2) and read the copy. Six times of steps of Mixtral that these copies limit are met within 8 %
on an H200 (docs/measurements/hugging-face.md)."""
_BATCHED_OPERATIONS = 15
"""Operations of experts in batched products (``batched_mm_experts_forward``): 13 calls of PyTorch less than
in grouped ones, of which transformers 5.17 has 28 (our count, without the activation)."""
_WITH_TOKENS, _WITHOUT_TOKENS = 1.47, 0.32
"""PyTorch operations for an expert in a grouped product, with and without tokens for it. PyTorch has grouped
kernels for bfloat16 only; for other types it calls one product per expert (``_grouped_mm_fallback`` in
aten/src/ATen/native/GroupedMMUtils.h): 16.1 and 3.5 us, where an addition takes 11.0 us (H200, PyTorch 2.11;
docs/measurements/hugging-face.md)."""


class OfTokens(NamedTuple):
    """OfTokens are times of modules that are equal in all passes with as many tokens of as many sequences."""

    compute: dict[Module, int]
    """GPU times [ps]."""
    launch_s: dict[Module, float]
    """Times of the host thread [s]."""


class Timing:
    """Timing gives the durations of one model's modules on one machine, for a given pass.

    ``zero3`` states whether ZeRO-3 has replaced the linear layers. Its ``LinearFunctionForZeroStage3``
    (deepspeed/runtime/zero/linear.py) adds a bias in a kernel of its own, unless all tokens of all sequences
    are in one dimension; PyTorch adds it within the product (``addmm``).
    """

    _cached = True
    """Whether keys and values are kept in a cache."""
    _generates = False
    """Whether experts are multiplied as ``generate`` does it after the prompt."""

    def __init__(
        self,
        *,
        machine: Machine,
        model: ModelShape,
        batch: tuple[Sequences, ...],
        zero3: bool,
        launch_factor: float = 1.0,
        cache: CacheForm = GROWING,
        known: Mapping[Module, int] | None = None,
        shared: OfTokens | None = None,
    ) -> None:
        """``known``: GPU times of modules [ps] that are given, not found; ``shared``: those of passes with as
        many tokens."""
        self.machine = machine
        self._cache = cache
        self._model, self._batch, self._zero3 = model, batch, zero3
        self._launch_factor = launch_factor
        self._seen = dict(known or {})
        self._same = OfTokens(self._seen, {}) if shared is None else shared

    def cost(self, module: Module) -> ModuleCost:
        """Return FLOP and HBM bytes of one call of ``module``."""
        return batch_cost(self._model, module, self._batch, self._cache)

    def compute(self, module: Module) -> int:
        """Return the GPU time of ``module`` [ps]: the larger side of the roofline plus the latency of its
        kernels."""
        found = self._same.compute.get(module)
        if found is None:
            found = self._seen.get(module)
        if found is not None:
            return found
        copied = copied_experts(self._model, module, self._tokens(module)) if self._generates else 0
        cost = self.cost(module)
        if copied:
            cost = cost._replace(bytes=_PASSES_OF_COPIES * copied)
        seconds = self._roofline_s(module, cost) + self._strided_s(module)
        if self._replaced(self._quantized(module)) and not module.flat:
            seconds += self._bias_s(module, passes=2) + self._strided_s(module, bias=True)
        found = picoseconds(seconds)
        (self._seen if depends_on_context(module) else self._same.compute)[module] = found
        return found

    @property
    def operation_s(self) -> float:
        """Host time of a PyTorch operation [s]."""
        return self._launch_factor * self.machine.host.deepspeed.operation.value

    def backward(self, module: Module, /) -> int:
        """Return the GPU time of the backward pass of ``module`` [ps], which only training has."""
        raise NotImplementedError(module.name)

    def dequantizing_s(self, module: Module, /) -> float:
        """Return the host time of writing quantized weights in full for a backward pass [s]."""
        raise NotImplementedError(module.name)

    def operations(self, module: Module) -> int:
        """Count the PyTorch operations of one call of ``module``, including the call itself."""
        return 1 + operations(self._model, module)

    def _tokens(self, module: Module, /) -> int:
        """Return the number of tokens that ``module`` processes."""
        return tokens_of(module, self._batch, self._cache)

    def _bias_s(self, module: Module, *, passes: int) -> float:
        """Return the time of a kernel [s] that reads or writes the result of a linear layer ``passes`` times
        for its bias; 0 without a bias."""
        if module.bias is None:
            return 0.0
        gpu, numel = self.machine.accelerator, self._tokens(module) * module.share * module.out_features
        return passes * numel * self._model.dtype_bytes / gpu.hbm_rate + gpu.kernel_latency_s

    def _strided_s(self, module: Module, *, bias: bool = False, backward: bool = False) -> float:
        """Return the time [s] that kernels take longer because they are not vectorized: those of ``module``,
        or the one that adds its bias.

        They compute as many addresses per second as the addition of a bias, whatever they move: casts to
        single precision, products with a row and copies of other strides write 0.32 to 0.39 elements per
        nanosecond on an H200 (docs/measurements/engine-parts.md), where its ``strided_rate`` is 0.36.
        """
        work = module.strided_back if backward else module.strided
        if bias:
            width = module.out_features if module.bias is not None else 0
            work = Strided(width, 2 * width)
        seen = self._tokens(module) * module.share
        return self._longer_s(
            seen * work.written, self.machine.accelerator.strided_rate, traffic=seen * work.traffic
        )

    def _longer_s(self, numel: float, rate: Sourced[int] | None, *, traffic: float | None = None) -> float:
        """Return the time [s] for which elements are read and written at ``rate`` longer than
        ``traffic``, by default as many read as written, at that of HBM."""
        if rate is None:
            return 0.0
        read = 2 * numel if traffic is None else traffic
        longer = 2 * numel / rate.value - read / self.machine.accelerator.hbm_rate
        return max(0.0, longer * self._model.dtype_bytes)

    def _roofline_s(
        self,
        module: Module,
        cost: ModuleCost,
        *,
        products: int = 1,
        kernels_each: int = 1,
        backward: bool = False,
    ) -> float:
        """Return the roofline time of ``cost`` [s], divided into ``products`` matrix products, plus kernel
        latency."""
        gpu = self.machine.accelerator
        if not (cost.flops or cost.bytes):
            return 0.0
        weights = self._quantized(module)
        if weights is None:
            seconds = max(self._arithmetic_s(cost, products=products), cost.bytes / gpu.hbm_rate)
        else:
            read = (cost.bytes - weights.unfused_bytes) / gpu.hbm_rate
            decoded = weights.fused_flops
            decoded += 0.0 if gpu.native(weights.arithmetic) else weights.native_flops
            read += decoded / gpu.compute.float32.value
            dtype = self._product_type(weights)
            seconds = max(self._arithmetic_s(cost, products=products, dtype=dtype), read)
            seconds += weights.unfused_bytes / gpu.hbm_rate + weights.kernels * gpu.kernel_latency_s
        if module.kind == "attention":
            seconds = self._attention_s(module, cost, backward=backward) or seconds
            seconds += sum(self._repeat_s(module, one) for one in self._batch)
        kernels = kernels_each * min(1 + operations(self._model, module), _MOST_KERNELS)
        return seconds + kernels * gpu.kernel_latency_s

    def _product_type(self, _weights: WeightCost, /) -> str:
        """Return the data type in which quantized weights are multiplied: that of the activations."""
        return self._model.dtype

    def _arithmetic_s(self, cost: ModuleCost, *, products: int = 1, dtype: str = "") -> float:
        """Return the time of the arithmetic of ``cost`` [s], divided into ``products`` matrix products."""
        work = max(1.0, cost.flops / products)
        return cost.flops / self.machine.accelerator.matmul_rate(work, dtype or self._model.dtype)

    def _kernels(self, module: Module, sequences: Sequences, *, backward: bool = False) -> ModuleCost:
        """Return the part of the cost of attention that its kernels have."""
        return attention_kernels(self._model, module, sequences, backward=backward, cache=self._cache)

    def _attention_s(self, module: Module, cost: ModuleCost, *, backward: bool) -> float | None:
        """Return the time of attention [s] with the measured speed of its kernels, for both passes that of
        the forward pass; None if it is unknown."""
        gpu, model = self.machine.accelerator, self._model
        curve = gpu.fused_attention if model.attention == "sdpa" else gpu.eager_attention
        if curve is None:
            return None
        seconds, left = 0.0, cost.bytes
        for one in self._batch:
            kernels = self._kernels(module, one, backward=backward)
            ideal = self._arithmetic_s(kernels) + kernels.bytes / gpu.hbm_rate
            seconds += ideal / curve.at(one.new_tokens)
            left -= kernels.bytes
            seconds += self._join_s(module, one)
        return seconds + left / gpu.hbm_rate

    def _join_s(self, module: Module, one: Sequences) -> float:
        """Return the time [s] that joining new tokens with the cache takes longer than its traffic."""
        if not self._cached:
            return 0.0
        joined = 0
        for part in self._model.parts_of(module):
            tokens = self._cache.slowly_joined(
                new_tokens=one.new_tokens, context=one.context, window=part.window
            )
            joined += 0 if part.borrowed else one.number * tokens * part.width // part.every
        return self._longer_s(joined, self.machine.accelerator.join_rate)

    def _repeat_s(self, module: Module, one: Sequences) -> float:
        """Return the time [s] in which eager attention copies keys and values of shared heads for each query
        head (``repeat_kv``), and reads the copies in place of them.

        The copies take the longer of the times of their traffic and of their addresses.
        """
        model, gpu = self._model, self.machine.accelerator
        sizes = model.heads_of(module)
        heads, shared = sizes.number, sizes.shared
        if not self._cached or model.attention != "eager" or heads == shared:
            return 0.0
        held = self._cache.held(new_tokens=one.new_tokens, context=one.context, window=module.window)
        each = one.number * held * sizes.widths * model.dtype_bytes
        copying = (heads + shared) * each / gpu.hbm_rate
        if gpu.strided_rate is not None:
            copying = max(copying, _COPY_ADDRESSES * 2 * heads * each / gpu.strided_rate.value)
        curve = gpu.eager_attention
        return copying + (heads - shared) * each / gpu.hbm_rate / (curve.at(one.new_tokens) if curve else 1.0)

    def launch_s(self, module: Module) -> float:
        """Return the host time for calling ``module`` and launching its kernels [s]."""
        found = self._same.launch_s.get(module)
        if found is None:
            found = self._launch_s(module)
            if not depends_on_context(module):
                self._same.launch_s[module] = found
        return found

    def _launch_s(self, module: Module) -> float:
        costs = self.machine.host.deepspeed
        call = 0.0 if module.kind in {"attention", "container"} else costs.module_call.value
        if self._generates and copied_experts(self._model, module, 1):
            return (call + _BATCHED_OPERATIONS * costs.operation.value) * self._launch_factor
        weights = self._quantized(module)
        if module.kind == "linear" and module.parallel != "experts" and self._replaced(weights):
            call = costs.linear_call.value
        count: float = operations(self._model, module) + (0 if weights is None else weights.operations)
        if module.parallel == "experts" and weights is None and self._model.dtype != "bfloat16":
            count += self._separate_products(module)
        count += self._cache.operations if module.kind == "attention" else 0
        # A dropout counts one operation less than a call, and an operation may be stated to take longer.
        return max(0.0, call + count * costs.operation.value) * self._launch_factor

    def _separate_products(self, module: Module) -> float:
        """Count the operations of experts' products that PyTorch launches one by one."""
        chosen = self._model.touched_share(module, self._tokens(module))
        each = chosen * _WITH_TOKENS + (1 - chosen) * _WITHOUT_TOKENS
        return self._model.traits.operations.grouped * self._model.num_experts * each

    def _replaced(self, weights: WeightCost | None) -> bool:
        """Return whether ZeRO-3 has replaced the linear layer with these weights: not DeepSpeed's layer with
        quantized weights, which calls PyTorch itself (deepspeed/inference/quantization/layers.py)."""
        return self._zero3 and weights is None

    def _quantized(self, module: Module) -> WeightCost | None:
        """Return the cost of a module's tensors; None if none is quantized."""
        if all(one.storage is None for one in module.parameters):
            return None
        return weight_cost(self._model, module, tokens=self._tokens(module))

    def hbm_copy(self, size: int) -> int:
        """Return the time to read and write ``size`` bytes within HBM [ps]."""
        return picoseconds(2 * size / self.machine.accelerator.hbm_rate)

    def joining(self, module: Module, size: int, duration: int) -> int:
        """Return the part of the ``duration`` [ps] of a module's attention in which the cache is joined with
        new tokens, which moves ``size`` [B] within HBM."""
        longer = sum(self._join_s(module, one) for one in self._batch)
        return min(duration, self.hbm_traffic(size) + picoseconds(longer))

    def hbm_traffic(self, size: float) -> int:
        """Return the time to move ``size`` bytes of reads and writes within HBM [ps]."""
        return picoseconds(size / self.machine.accelerator.hbm_rate)


def operations(model: ModelShape, module: Module) -> int:
    """Count the PyTorch operations of one call of ``module`` beyond the call itself."""
    own = model.traits.operations
    if module.kind == "container":  # the operations of attention are counted in the module that runs them
        return {"none": 0, "block": own.block, "mlp": own.mlp}[module.code]
    count: int = own.experts if module.parallel == "experts" else getattr(own, module.kind)
    eager = module.kind == "attention" and model.attention == "eager"
    return count + own.eager if eager else count


def depends_on_context(module: Module) -> bool:
    """Return whether the time of a module depends on the earlier tokens of the sequences."""
    return module.kind == "attention" or module.cached


Tokens = tuple[tuple[int, int, int], ...]
"""Numbers of sequences, of their new tokens and of those that are scored."""


def of_tokens(batch: Sequence[Sequences]) -> Tokens:
    """Return the numbers which decide all times but those that depend on the context."""
    return tuple([(one.number, one.new_tokens, one.scored) for one in batch])


class _PassTimes(NamedTuple):
    """_PassTimes are GPU times of the modules of one model on one GPU [ps]."""

    same: dict[Tokens, dict[Module, int]]
    """Times that are equal in all passes with as many tokens of as many sequences."""
    first: dict[Tokens, tuple[int, ...]]
    """Times of all modules in the first pass with as many tokens that was asked for."""
    all: dict[tuple[Sequences, ...], tuple[int, ...]]
    """Times of all modules, by pass."""


_TIMES = Recent[tuple[str, tuple[int, ...], bool, CacheForm], tuple[object, _PassTimes]]()
"""Times by the identity of models and GPUs."""
_MOST_PASSES = 4096
"""Number of passes whose times are kept for each model and GPU."""


def without_deepspeed(machine: Machine) -> float:
    """Return the ratio of the host's time of an operation without DeepSpeed to that under it."""
    return machine.host.eager_costs.operation.value / machine.host.deepspeed.operation.value


class PassTimings:
    """PassTimings are the durations of a model's modules on one machine for any pass.

    Values that do not depend on the context are computed once.
    """

    def __init__(
        self,
        *,
        machine: Machine,
        model: ModelShape,
        modules: Sequence[Module],
        zero3: bool,
        cache: CacheForm = GROWING,
    ) -> None:
        self._machine, self._model, self._zero3, self._cache = machine, model, zero3, cache
        self._launch_factor = 1.0 if zero3 else without_deepspeed(machine)
        self._modules = modules
        self._by_context = [index for index, one in enumerate(modules) if depends_on_context(one)]
        self._shared: dict[Tokens, OfTokens] = {}
        # Machines that differ in other devices share them.
        kept = machine.accelerator, model, *modules
        key = type(self).__qualname__, tuple(map(id, kept)), zero3, cache
        _, self._times = _TIMES.get(key, lambda: (kept, _PassTimes({}, {}, {})))

    def timing(self, batch: tuple[Sequences, ...]) -> Timing:
        """Return the timing of one pass."""
        return self._timing_kind(batch)(
            machine=self._machine,
            model=self._model,
            batch=batch,
            zero3=self._zero3,
            launch_factor=self._launch_factor,
            cache=self._cache,
            shared=self._of_tokens(of_tokens(batch)),
        )

    def _timing_kind(self, _batch: tuple[Sequences, ...], /) -> type[Timing]:
        """Return the kind of timing that a pass has."""
        return Timing

    def _of_tokens(self, tokens: Tokens) -> OfTokens:
        if tokens not in self._shared:
            self._shared[tokens] = OfTokens(self._times.same.setdefault(tokens, {}), {})
        return self._shared[tokens]

    def durations(self, batch: tuple[Sequences, ...]) -> tuple[int, ...]:
        """Return the GPU time of each of the modules [ps]."""
        found = self._times.all.get(batch)
        if found is None:
            if len(self._times.all) >= _MOST_PASSES:
                for times in self._times:
                    times.clear()
            found = self._times.all[batch] = self._durations(batch)
        return found

    def _durations(self, batch: tuple[Sequences, ...]) -> tuple[int, ...]:
        timing, tokens = self.timing(batch), of_tokens(batch)
        known = self._times.first.get(tokens)
        if known is None:
            known = self._times.first[tokens] = tuple(map(timing.compute, self._modules))
        durations = list(known)
        for index in self._by_context:
            durations[index] = timing.compute(self._modules[index])
        return tuple(durations)


class _GeneratedTiming(Timing):
    """The durations of a decode step of transformers' ``generate``."""

    _generates = True


class GeneratedPassTimings(PassTimings):
    """GeneratedPassTimings are the durations of the passes of transformers' ``generate``, which replaces
    grouped products of experts by batched ones after the prompt.

    Source: ``_optimize_model_for_decode`` in generation/utils.py of transformers 5.17.
    """

    def _timing_kind(self, batch: tuple[Sequences, ...], /) -> type[Timing]:
        return _GeneratedTiming if all(one.new_tokens == 1 for one in batch) else Timing


_BACKWARD_KERNELS = 2
"""Number of backward kernels for each forward kernel (an estimate): one for the gradient of the input, and
one for that of the weight or for a saved mask."""


class TrainingTiming(Timing):
    """A TrainingTiming is a ``Timing`` for complete sequences without a cache, and for backward passes."""

    _cached = False

    def __init__(
        self,
        *,
        machine: Machine,
        model: ModelShape,
        batch: int,
        length: int,
        zero3: bool,
        launch_factor: float = 1.0,
        casts: int = 0,
    ) -> None:
        """``casts``: [B] of traffic per element with which weights of products are cast in each pass."""
        sequences = (Sequences(batch, length, length),)
        super().__init__(
            machine=machine, model=model, batch=sequences, zero3=zero3, launch_factor=launch_factor
        )
        self._sequences, self._length, self._casts = batch, length, casts
        self._back: dict[Module, int] = {}

    def cost(self, module: Module) -> ModuleCost:
        """Return FLOP and HBM bytes of the forward pass of ``module``."""
        return training_cost(self._model, module, batch=self._sequences, length=self._length)

    def compute(self, module: Module) -> int:
        """Return the GPU time of ``module`` [ps], with the cast of its weights."""
        cast = self._casts * module.num_parameters if module.kind in ("linear", "router") else 0
        return super().compute(module) + self.hbm_traffic(cast)

    def backward(self, module: Module) -> int:
        """Return the GPU time of the backward pass of ``module`` [ps]."""
        if module not in self._back:
            cost = backward_cost(self._model, module, batch=self._sequences, length=self._length)
            products = backward_products(module) if module.kind in ("linear", "router") else 1
            seconds = self._roofline_s(
                module, cost, products=products, kernels_each=_BACKWARD_KERNELS, backward=True
            )
            if module.bias is not None and module.bias.trainable:
                seconds += self._bias_s(module, passes=1)
            self._back[module] = picoseconds(seconds + self._strided_s(module, backward=True))
        return self._back[module]

    def dequantizing_s(self, module: Module) -> float:
        """Return the host time of launching kernels that write the weights of ``module`` in full once more,
        for its backward pass [s]."""
        weights = self._quantized(module)
        return 0.0 if weights is None else weights.operations * self.operation_s

    def _tokens(self, _module: Module, /) -> int:
        return self._sequences * self._length


# -- beyond what was measured ------------------------------------------------------------------------


def ranks_beyond(ranks: int, machine: Machine, *, costs: DeepSpeedCosts | FsdpCosts) -> Iterator[str]:
    """Yield a warning if a host has more ranks than the measurement of the host thread's ``costs`` had."""
    here, measured = machine.ranks_per_node(ranks), costs.ranks.value
    if here > measured:
        yield f"{here} ranks on a host; costs of the host thread were measured with up to {measured}"


def arithmetic_beyond(model: ModelShape, workload: Inference, machine: Machine) -> Iterator[str]:
    """Yield a warning about matrix multiplications of the prefill that are larger than any measured one."""
    curve = machine.accelerator.matmul_efficiency
    most = max(
        module_cost(
            model,
            module,
            batch=workload.batch_size,
            new_tokens=workload.prompt_length,
            context=workload.prompt_length,
        ).flops
        for module in model.distinct_modules
        if module.kind == "linear"
    )
    last = curve.points[-1][0]
    if curve.origin == "measured" and most > last:
        yield f"matrix multiplications of {format_flops(most)}; measured up to {format_flops(last)}"


# --------------------------------------------------------------------------------------------------
# Durations of the fused kernels of compiled serving: vLLM and torch.compile.
#
# Counted in vLLM 0.25 and 0.33 as it runs on NVIDIA GPUs, per layer of a step, and for Llama-3.1-8B and gpt-
# oss-20b in traces of vLLM 0.25.1 on an H100 (prefills of 512 and 2,048 tokens, decode steps of 1 and 64):
#
# ======================  =========================================================================
# norm                    1, with the residual; those of queries and keys together 1 (Inductor)
# projections             1 each, those that read the same input together
# attention               rotation, cache write (``reshape_and_cache_flash``), scores and values, and the sum
#                         of the parts of a split context (FlashAttention 3)
# latent attention        two batched products for the absorbed expansion, rotation, joined queries, cache
#                         write, attention and the sum of its parts (``mla_attention.py``)
# activation              1
# experts                 router and ``topk_softmax``; ``moe_align_block_size`` in two kernels, two grouped
#                         products, activation, ``moe_sum`` (``fused_moe.py``)
# experts in MXFP4        Triton on Hopper: router and top-k, counts of tokens, two of routing, two products
#                         of which the first has the activation, and the sum
#                         (``gpt_oss_triton_kernels_moe.py``)
# FP8, FP4                1 more for each projection whose input no norm or activation quantizes
# logits                  cast, choice of the token, and its copy: 4 (``v1/sample/sampler.py``)
# ======================  =========================================================================


CAPTURED = 512
"""Most tokens of a pass for which CUDA graphs are captured (``max_cudagraph_capture_size``,
vllm/config/vllm.py), unless the engine of a plan says otherwise."""
Graphs = Literal["whole", "pieces", "none", "uncompiled"]
"""Whether the kernels of a pass are in one CUDA graph, in one for each piece between calls of attention,
launched one by one within pieces of compiled code, or without any."""


def experts_kernel(model: ModelShape) -> Kernel:
    """Return the kind of kernel that reads the weights of experts; empty for 16 bits, and without experts."""
    experts = (one for layer, _ in model.kinds for one in layer if one.parallel == "experts")
    return next(map(kernel_of, experts), "")


def kernel_of(module: Module) -> Kernel:
    """Return the kind of kernel that reads the weights of a module; empty for 16 bits."""
    form = _format_of(module)
    return "" if form is None else form.dequantization.kernel


def _format_of(module: Module) -> WeightFormat | None:
    return next((one.storage.format for one in module.parameters if one.storage is not None), None)


_GROUPED_KERNELS = {"": 4, "mxfp4": 5}
"""Kernels of the experts of a layer beside those of router, activation and sum, by the kernel that reads
their weights."""
_CACHED = 32 << 20
"""Size [B] of the data of a kernel that are in a GPU's cache still (our choice; 50 MB on Hopper)."""
_SCORE = 4
"""Size [B] of an indexer's score."""
_SAMPLING_KERNELS = 4
_ROUNDED = 16
"""Rows to which the tokens of an expert are padded at least (``BLOCK_SIZE_M``, fused_moe.py), and those of a
product with weights that its kernel decodes (marlin.cu; Machete exchanges rows and columns)."""


class FusedTiming(Timing):
    """A FusedTiming has the durations of fused kernels: a paged cache is not copied when it grows.

    After the prefill, latent attention reads the latent cache itself, as in vLLM 0.33
    (``model_executor/layers/attention/mla_attention.py``), so that nothing is expanded.
    """

    _cached = False

    def __init__(self, *, captured: int = CAPTURED, **given: Any) -> None:
        super().__init__(**given)
        self._captured = captured

    def cost(self, module: Module) -> ModuleCost:
        """Return FLOP and HBM bytes of one call of ``module``.

        Attention reads the cache once; before it, queries and keys are rotated (read and written), and keys
        and values written to the cache (read and written).
        """
        if module.kind != "attention":
            return super().cost(module)
        model = self._model
        kernels = [self._kernels(module, one) for one in self._batch]
        heads = model.heads_of(module)
        rotated = (heads.number + heads.shared) * heads.keys
        if model.expands(module) and model.latent_width is not None and model.latent_rank is not None:
            rotated = (model.num_attention_heads + 1) * (model.latent_width - model.latent_rank)
        written = self._model.token_bytes([module]), model.token_bytes([module], self._cache.paged or None)
        traffic: float = self._tokens(module) * (2 * rotated * model.dtype_bytes + sum(written))
        flops, own = sum([one.flops for one in kernels]), sum([one.bytes for one in kernels])
        return ModuleCost(flops, traffic + own)

    def launch_s(self, module: Module) -> float:
        """Return the host time of launching the kernels of ``module`` [s]: none within CUDA graphs, which
        begin before the layers or behind attention and updates of states (``_attention_ops``,
        vllm/config/compilation.py)."""
        graphs = self.graphs
        costs = self.machine.host.compiled_costs
        splits = module.kind == "attention" or bool(module.state)
        if graphs == "whole" or (graphs == "pieces" and not splits):
            return 0.0
        seconds = self.kernels(module) * costs.kernel.value
        if splits:
            seconds += costs.attention.value + (costs.piece.value if graphs == "none" else 0.0)
        if module.parallel == "experts":
            seconds += (costs.mxfp4 if kernel_of(module) == "mxfp4" else costs.experts).value
        return seconds

    @property
    def decodes(self) -> bool:
        """Whether every sequence is in a decode step: it feeds in one token that follows others, or those
        that a draft proposes, too, for which vLLM captures graphs as well (``uniform_decode_query_len``)."""
        return all(one.decodes for one in self._batch)

    @cached_property
    def graphs(self) -> Graphs:
        """Which CUDA graphs the pass uses (``FULL_AND_PIECEWISE``, vLLM's default)."""
        if sum(one.number * one.new_tokens for one in self._batch) > self._captured:
            return "none"
        return "whole" if self.decodes else "pieces"

    def kernels(self, module: Module) -> int:
        """Count the kernels of one call of ``module``."""
        match module.kind:
            case "attention":
                return 4 + (self._model.expands(module) and self.decodes)
            case "norm":
                return 0 if module.parallel == "keys" else 1
            case "router":
                return 2
            case "activation" if module.state:
                return 2 if self.decodes else max(2, module.chunked.kernels)  # a convolution, and the update
            case "activation" if module.share < 1 and self._experts_kernel == "mxfp4":
                return 0  # fused with the first product
            case "linear" if module.parallel == "experts":
                return _GROUPED_KERNELS.get(kernel_of(module), _GROUPED_KERNELS[""])
            case "linear":
                return 1 + self._more_kernels(module)
        return 1

    @cached_property
    def _experts_kernel(self) -> Kernel:
        """Kind of kernel that reads the weights of experts."""
        return experts_kernel(self._model)

    def _more_kernels(self, module: Module) -> int:
        """Count kernels of a linear layer beyond its product: of sampling, of quantization of its input where
        no norm or activation does it, and of the second part of an absorbed expansion."""
        if module.parallel == "vocabulary":
            return _SAMPLING_KERNELS
        if module.name.endswith("kv_b_proj") and self.decodes:
            return 1
        return int(bool(self._native(module)) and self._rounds(module))

    def _native(self, module: Module) -> str:
        """Return the data type in which tensor cores multiply stored weights; empty: in that of the model."""
        form = _format_of(module)
        return "" if form is None else self.machine.accelerator.native(form.dequantization.arithmetic)

    @staticmethod
    def _rounds(module: Module) -> bool:
        """Return whether a kernel of its own rounds the input of a product to the type of the weights."""
        return module.parallel == "row" and ("attn" in module.name or "attention" in module.name)

    def compute(self, module: Module) -> int:
        """Return the GPU time of ``module`` [ps]: the larger side of the roofline, and the latency of its
        kernels."""
        known = self._seen.get(module)
        if known is None:
            known = self._seen[module] = picoseconds(self._kernels_s(module, self.cost(module)))
        return known

    def _kernels_s(self, module: Module, cost: ModuleCost) -> float:
        """Return the time of the kernels of ``module`` [s]."""
        if not (cost.flops or cost.bytes):
            return 0.0
        gpu = self.machine.accelerator
        own = self._own_s(module, cost)
        if own is not None:
            seconds = own
        elif module.kind == "attention":
            known = self._known_attention_s(module)
            if known is not None:
                return known
            ideal = max(self._arithmetic_s(cost), cost.bytes / gpu.hbm_rate)
            seconds = self._attention_s(module, cost, backward=False) or ideal
        elif module.kind in ("linear", "router"):
            experts = module.parallel == "experts"
            known = self._known_experts_s(module, cost) if experts else self._known_product_s(module)
            if known is not None:
                return known
            seconds = self._product_s(module, cost)
        else:
            seconds = self._pointwise_s(module, cost)
        return seconds + self.kernels(module) * gpu.kernels.kernel_latency.value

    def _own_s(self, module: Module, cost: ModuleCost) -> float | None:
        """Return the time [s] of the kernels of a recurrent layer, or of sparse attention, without their
        latency; None for all others."""
        if module.state:
            return self._update_s(module)
        parts = module.keeps or ()
        if module.kind != "attention" or (module.attends and not any(one.chosen for one in parts)):
            return None
        left, seconds = cost.bytes, 0.0
        for one in self._batch:
            left -= self._kernels(module, one).bytes
            seconds += self._chosen_s(module, one) if module.attends else self._scores_s(module, one)
        code = self.machine.accelerator.kernels.sparse
        start = code.attention_start if module.attends else code.choice_start
        return seconds + left / self.machine.accelerator.hbm_rate + start.value

    def _update_s(self, module: Module) -> float:
        """Return the time [s] in which kernels update the states of sequences.

        Notes
        -----
        Prompts: t = max(FLOP / (peak rate x ``chunked``), traffic between chunks / rate of HBM); decode steps
        of T tokens: t = (1 + T) states / (peak bandwidth x ``states``, or ``proposed`` for T > 1). What is
        read and written of each token, by the convolution as well, moves at the rate of HBM.
        """
        gpu, size, chunked = self.machine.accelerator, self._model.dtype_bytes, module.chunked
        code = gpu.kernels.updates
        seconds = self._tokens(module) * (module.in_features + module.out_features) * size / gpu.hbm_rate
        for one in self._batch:
            states = one.number * module.state
            if one.decodes:
                share = code.states if one.new_tokens == 1 else code.proposed
                seconds += (1 + one.new_tokens) * states / (gpu.hbm_bandwidth.value * share.value)
            else:
                tokens, peak = one.number * one.new_tokens, gpu.peak(self._model.dtype)
                products_s = tokens * chunked.flops / (peak * code.chunked.value)
                seconds += max(products_s, tokens * chunked.traffic * size / gpu.hbm_rate)
                seconds += 2 * states / gpu.hbm_rate
        return seconds

    def _scores_s(self, module: Module, one: Sequences) -> float:
        """Return the time [s] of an indexer's scores and of its choice, which reads them.

        Notes
        -----
        t = max(FLOP / (peak rate in FP8 x ``scores``), keys / rate of reading weights)
        + 4 B x scores / (peak bandwidth x ``choice``)
        """
        gpu, kernels = self.machine.accelerator, self._kernels(module, one)
        code, bandwidth = gpu.kernels, gpu.hbm_bandwidth.value
        new, context = one.new_tokens, one.context
        scores = (
            _SCORE
            * one.number
            * sum(
                attended_rows(new_tokens=new, context=context, every=part.every, chosen=None)
                for part in self._model.parts_of(module)
            )
        )
        peak = gpu.peak(gpu.native("float8") or self._model.dtype)
        read_s = (kernels.bytes - 2 * scores) / (bandwidth * code.read_efficiency.value)
        seconds = max(kernels.flops / (peak * code.sparse.scores.value), read_s)
        return seconds + scores / (bandwidth * code.sparse.choice.value)

    def _chosen_s(self, module: Module, one: Sequences) -> float:
        """Return the time [s] of attention over chosen rows, which prompts read together.

        Notes
        -----
        t = FLOP / (peak rate x ``attention``), and in decode steps + bytes / (peak bandwidth x ``rows``)
        """
        gpu, kernels = self.machine.accelerator, self._kernels(module, one)
        code = gpu.kernels.sparse
        seconds = kernels.flops / (gpu.peak(self._model.dtype) * code.attention.value)
        return seconds + one.decodes * kernels.bytes / (gpu.hbm_bandwidth.value * code.rows.value)

    def _pointwise_s(self, module: Module, cost: ModuleCost) -> float:
        """Return the time of a kernel that works element by element [s]: one of Inductor's, or of vLLM's own
        around experts."""
        if module.kind == "activation" and not self.kernels(module):
            return 0.0  # its data never leave the product
        gpu, rate = self.machine.accelerator, self.machine.accelerator.kernels.pointwise
        if module.state:  # kernels of their own, which also multiply
            return max(self._arithmetic_s(cost), cost.bytes / gpu.hbm_rate)
        inductor = module.kind in ("norm", "activation") and module.share == 1
        if rate is None or not inductor or cost.bytes < _CACHED:
            return cost.bytes / gpu.hbm_rate
        return cost.bytes / rate.value

    def _product_s(self, module: Module, cost: ModuleCost) -> float:
        """Return the time of a product [s], or of the grouped products of experts, without the latency of
        their kernels."""
        gpu, code = self.machine.accelerator, self.machine.accelerator.kernels
        stored, kernel, native = self._stored(module), kernel_of(module), self._native(module)
        if stored and (kernel == "" or not self._fuses(module)):
            return self._decoded_elsewhere_s(module, cost)
        form = _format_of(module)
        kernel = kernel if native or form is None else form.dequantization.decoding
        read = gpu.hbm_bandwidth.value * code.read_efficiency.value
        reading_s = (cost.bytes - stored + stored / code.share(kernel)) / read
        decodes = bool(kernel) and not native
        peak = gpu.peak(native or self._model.dtype)
        if kernel != "mxfp4":  # whose experts are as fast as those of 16 bits
            peak *= code.native_products(native) if native else code.decoded.value if decodes else 1.0
        rows = _ROUNDED if decodes else code.least_rows.value
        arithmetic_s = self._padded_work(module, cost, rows) / peak
        seconds = together(reading_s, arithmetic_s)
        return seconds + decodes * code.weight_latency.value * (2 if module.parallel == "experts" else 1)

    def _known_product_s(self, module: Module) -> float | None:
        """Return the time [s] of a product and its kernels by the GPU's table of measured ones; None without.

        One that vLLM joins with others of the same input (``QKVParallelLinear``,
        ``MergedColumnParallelLinear``) has its part of the time of all. The table contains the rounding of
        the input to the type of the weights.
        """
        gpu, native = self.machine.accelerator, self._native(module)
        if module.share < 1 or (self._stored(module) and not native):
            return None
        weight = module.parameters[0]
        inputs = weight.columns or module.in_features
        outputs = weight.numel // inputs
        joint = self._model.joint_outputs.get(module, outputs)
        seconds = gpu.product_s(
            rows=max(1, self._tokens(module)),
            outputs=joint,
            inputs=inputs,
            dtype=native or self._model.dtype,
            size=self._model.dtype_bytes,
        )
        if seconds is None:
            return None
        more = self.kernels(module) - 1 - (bool(native) and self._rounds(module))
        around = module.in_features + module.out_features - inputs - outputs
        seconds += self._tokens(module) * around * self._model.dtype_bytes / gpu.hbm_rate
        return seconds * outputs / joint + max(0, more) * gpu.kernels.kernel_latency.value

    def _known_experts_s(self, module: Module, cost: ModuleCost) -> float | None:
        """Return the time [s] of the grouped products of a layer and their kernels by the GPU's table; None
        without."""
        gpu, model, kernel = self.machine.accelerator, self._model, kernel_of(module)
        native = self._native(module)
        dtype = native or model.dtype
        form = kernel if native or kernel == "mxfp4" else "" if not self._stored(module) else None
        table = None if form is None else gpu.kernels.experts(form)
        if table is None or module.expert is not None or dtype not in MULTIPLIED:
            return None
        tokens = max(1, self._tokens(module))
        chosen = max(1.0, model.num_experts * model.touched_share(module, tokens))
        *_, last = (one for one in module.parameters if not one.name.endswith("bias"))
        work = KernelWork(
            rows=tokens * model.experts_per_token / chosen,
            outputs=last.columns,
            inputs=chosen,
            traffic=cost.bytes,
            flops=cost.flops,
            kernels=self.kernels(module),
        )
        return gpu.table_s(table, work, dtype=dtype)

    def _known_attention_s(self, module: Module) -> float | None:
        """Return the time [s] of attention and of the write of keys and values by the GPU's tables, and of
        the rotation before them; None without tables.

        Sequences of a decode step, and others, are looked up by their mean. A call of a table also plans
        its blocks, which vLLM does once a step (``aot_schedule``, v1/attention/backends/flash_attn.py): the
        kernel of the rotation takes the place of that.
        """
        gpu, code, model = self.machine.accelerator, self.machine.accelerator.kernels, self._model
        size = model.dtype_bytes
        own = model.heads_of(module)
        other = (
            model.expands(module)
            or own.joint
            or not own.values
            or any(one.every > 1 or one.chosen for one in module.keeps or ())
        )
        if other or self._cache.paged not in (0.0, size) or model.dtype not in MULTIPLIED:
            return None
        heads, shared = own.number, own.shared
        sizes = AttentionSizes(heads, shared, own.keys, module.window, size)
        steps, prompts = (
            [Attended(*one[:3]) for one in self._batch if one.number and one.decodes == decodes]
            for decodes in (True, False)
        )
        parts = []
        if steps:
            parts.append((code.decode_table, decode_work(steps, sizes, least_rows=code.least_rows.value)))
        if prompts:
            parts.append((code.prefill_table, prefill_work(prompts, sizes)))
        rotated = 2 * self._tokens(module) * (heads + shared) * own.keys * size
        seconds = rotated / gpu.hbm_rate
        for number, (table, work) in enumerate(parts):
            if table is None:
                return None
            one_call = work._replace(kernels=0) if number else work
            seconds += gpu.table_s(table, one_call, dtype=model.dtype)
        return seconds

    def _stored(self, module: Module) -> float:
        """Return the bytes of quantized weights that a call of ``module`` reads [B]."""
        stored = sum(one.storage.read for one in module.parameters if one.storage is not None)
        return stored * self._model.touched_share(module, self._tokens(module))

    def _fuses(self, module: Module) -> bool:
        """Return whether the kernels of quantized weights take so many tokens."""
        seen = self._tokens(module) * module.share
        stored = (one.storage for one in module.parameters)
        return all(one is None or one.format.dequantization.fuses(seen) for one in stored)

    def _padded_work(self, module: Module, cost: ModuleCost, least: int) -> float:
        """Return the operations of a product [FLOP] that would take as long at the full rate: of ``least``
        rows, which tensor cores multiply at least, at the efficiency of its size."""
        code, tokens = self.machine.accelerator.kernels, max(1, self._tokens(module))
        if module.parallel != "experts":
            work = cost.flops * max(tokens, least) / tokens
            return work / code.products.at(work)
        model = self._model
        touched = max(1.0, model.num_experts * model.touched_share(module, tokens))
        rows = tokens * model.experts_per_token / touched
        work = cost.flops * max(rows, _ROUNDED) / rows
        return work / code.grouped.at(max(rows, _ROUNDED))

    def _decoded_elsewhere_s(self, module: Module, cost: ModuleCost) -> float:
        """Return the time of a product with weights that no kernel of vLLM reads [s]."""
        gpu = self.machine.accelerator
        weights = self._quantized(module)
        assert weights is not None
        read = (cost.bytes - weights.unfused_bytes) / gpu.hbm_rate
        read += weights.fused_flops / gpu.compute.float32.value
        seconds = max(self._arithmetic_s(cost), read)
        return seconds + weights.unfused_bytes / gpu.hbm_rate + weights.kernels * gpu.kernel_latency_s

    def _kernels(self, module: Module, sequences: Sequences, *, backward: bool = False) -> ModuleCost:
        sparse = any(one.chosen for one in module.keeps or ())
        if self._model.expands(module) and (sparse or sequences.new_tokens < sequences.context):
            return absorbed_kernels(self._model, module, sequences, self._cache)
        return super()._kernels(module, sequences, backward=backward)


class LaunchedTiming(FusedTiming):
    """A LaunchedTiming has the durations of fused kernels that the host launches one by one, as with
    ``--enforce-eager``, without pieces of compiled code."""

    graphs = "uncompiled"


class FusedPassTimings(PassTimings):
    """FusedPassTimings are the durations of modules with fused kernels."""

    _kind: ClassVar = FusedTiming

    def __init__(self, *, captured: int = CAPTURED, **given: Any) -> None:
        super().__init__(**given)
        self._captured = captured

    def timing(self, batch: tuple[Sequences, ...]) -> Timing:
        """Return the timing of one pass."""
        return self._kind(
            machine=self._machine,
            model=self._model,
            batch=batch,
            zero3=False,
            cache=self._cache,
            captured=self._captured,
        )


class LaunchedPassTimings(FusedPassTimings):
    """LaunchedPassTimings are the durations of modules with fused kernels that the host launches."""

    _kind: ClassVar = LaunchedTiming


def spread_bound(model: ModelShape, workload: Inference, machine: Machine, *, ranks: int) -> float | None:
    """Return an upper bound of decode throughput [tokens/s] if each GPU reads only its part of the weights.

    None if there is no decode step, and with speculative decoding, of which a step yields more.

    Notes
    -----
    In a step each of ``ranks`` x ``batch_size`` sequences gets a token, and each GPU reads its part of the
    weights and of the key-value cache once from its HBM, at the rate of its profile:

        batch_size x ranks x rate / (weights / ranks + cache of batch_size sequences)

    The weights are the least that a step must read (``ModelShape.least_read_bytes``: no embeddings, and the
    experts of a single token, as if all tokens used the same ones). The cache is that at the mean context of
    the decode steps. Tensor parallelism divides weights and cache in this way (Shoeybi et al., Megatron-LM,
    arXiv 1909.08053). The bound ignores its communication and all computation, so it is not a prediction.
    """
    if not workload.decode_steps or workload.speculation is not None:
        return None
    batch = workload.batch_size
    steps, prompt = workload.decode_steps, workload.prompt_length
    twice = 2 * prompt + steps + 1  # the mean context, which may be between two lengths
    around = (model.kv_cache_bytes(batch=batch, tokens=tokens) for tokens in (twice // 2, (twice + 1) // 2))
    cache = sum(around) / 2
    return batch * ranks * machine.accelerator.hbm_rate / (model.least_read_bytes / ranks + cache)


# -- durations of the kernels of ggml's CUDA backend, with which llama.cpp computes on the GPU -----


_LAUNCH_S = 3e-6
"""Time [s] of launching a kernel from C++ (an estimate; from memory, unverified)."""
_CACHE_FLOPS = 32
"""Operations in single precision that attention of one token takes for each byte of the cache.

Source: three models on a DGX Spark, 32,768 tokens in the cache against none, read 180 to 193 GB/s of it where
weights are read at 232 (benches/dgx-spark of llama.cpp, 2026-02; rows in view)."""
_ONE_BY_ONE = 8
"""Tokens up to which each chosen expert of each is a product of its own (``MMVQ_MAX_BATCH_SIZE``)."""
_EIGHT = 8
"""Bits per weight from which weights need no decoding."""


class GgmlTiming(FusedTiming):
    """A GgmlTiming has the durations of ggml's CUDA kernels, of which a stretch is one CUDA graph in a
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
        return kernels_of(module, decodes=self.decodes)

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

    def _own_s(self, _module: Module, _cost: ModuleCost) -> None:
        """Return None: these numbers are of vLLM's kernels."""

    def _known_product_s(self, _module: Module) -> None:
        """Return None: tables are of vLLM's kernels."""

    def _known_experts_s(self, _module: Module, _cost: ModuleCost) -> None:
        """Return None: tables are of vLLM's kernels."""

    def _known_attention_s(self, _module: Module) -> None:
        """Return None: tables are of vLLM's kernels."""

    def _product_s(self, module: Module, cost: ModuleCost) -> float:
        """Return the time of a product [s] without the latency of its kernels; weights in single precision
        and of 16 bits are multiplied as elsewhere."""
        stored = self._stored(module)
        if not stored:
            return super()._product_s(module, cost)
        gpu, code, model = self.machine.accelerator, self.machine.accelerator.llama_kernels, self._model
        experts, tokens = module.parallel == "experts", max(1, self._tokens(module))
        share = code.expert_reads if experts and tokens <= _ONE_BY_ONE else code.reads
        efficiency = gpu.kernels.read_efficiency if share is None else share
        read_s = cost.bytes / (gpu.hbm_bandwidth.value * efficiency.value)
        read_s += decoding_s(module, stored, code) if share is None else 0.0
        if tokens == 1:
            return read_s
        if experts:
            touched = max(1.0, model.num_experts * model.touched_share(module, tokens))
            reached = code.expert_share(tokens * model.experts_per_token / touched, tokens=tokens)
        else:
            reached = code.products.at(float(tokens))
        forms = {one.storage.format.name for one in module.parameters if one.storage is not None}
        if code.four_bits is not None and "mxfp4" in forms:
            reached *= code.four_bits.value
        return max(read_s, cost.flops / (gpu.peak("float16") * reached))


def kernels_of(module: Module, *, decodes: bool) -> int:
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
        case "linear" if decodes and module.name.endswith("up_proj"):
            return 0
        case "linear":
            return 2
        case "activation":
            return 0 if decodes else 1
    return 0


def decoding_s(module: Module, stored: float, code: GgmlKernels) -> float:
    """Return the time of decoding ``stored`` bytes of quantized weights of a module for one token [s]."""
    if module.parallel == "experts":
        return stored / code.decode_experts.value
    forms = [one.storage.format.bits_per_weight for one in module.parameters if one.storage is not None]
    return stored / code.decode.value if forms and min(forms) < _EIGHT else 0.0


class GgmlTimings(PassTimings):
    """GgmlTimings are the durations of modules with kernels of ggml."""

    def timing(self, batch: tuple[Sequences, ...]) -> GgmlTiming:
        """Return the timing of one pass."""
        return GgmlTiming(
            machine=self._machine, model=self._model, batch=batch, zero3=False, cache=self._cache
        )
