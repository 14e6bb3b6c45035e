"""Durations of the fused kernels of compiled serving: vLLM and torch.compile.

Counted in vLLM 0.25 and 0.33 as it runs on NVIDIA GPUs, per layer of a step, and for Llama-3.1-8B and
gpt-oss-20b in traces of vLLM 0.25.1 on an H100 (prefills of 512 and 2,048 tokens, decode steps of 1 and 64):

======================  =========================================================================
norm                    1, with the residual; those of queries and keys together 1 (Inductor)
projections             1 each, those that read the same input together
attention               rotation, cache write (``reshape_and_cache_flash``), scores and values, and the sum
                        of the parts of a split context (FlashAttention 3)
latent attention        two batched products for the absorbed expansion, rotation, joined queries, cache
                        write, attention and the sum of its parts (``mla_attention.py``)
activation              1
experts                 router and ``topk_softmax``; ``moe_align_block_size`` in two kernels, two grouped
                        products, activation, ``moe_sum`` (``fused_moe.py``)
experts in MXFP4        Triton on Hopper: router and top-k, counts of tokens, two of routing, two products
                        of which the first has the activation, and the sum
                        (``gpt_oss_triton_kernels_moe.py``)
FP8                     1 more for each projection whose input no norm or activation quantizes
logits                  cast, choice of the token, and its copy: 4 (``v1/sample/sampler.py``)
======================  =========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Literal

from simoffload.models import ModelShape, Module, ModuleCost, Sequences, absorbed_kernels
from simoffload.models.formats import Kernel
from simoffload.strategies.passes.timing import PassTimings, Timing, picoseconds

Graphs = Literal["whole", "pieces", "none"]
"""Whether the kernels of a pass are in one CUDA graph, in one for each piece between calls of attention, or
launched one by one."""
_CAPTURED = {"": 512, "mxfp4": 256}
"""Most tokens of a pass for which CUDA graphs are captured (``max_cudagraph_capture_size``,
vllm/config/vllm.py: at most 512, and twice ``max_num_seqs``, which is 256 by default), by the kernel of the
experts' weights. The run of MXFP4 that predictions are compared with captured them up to 256 tokens."""


def graphs_of(model: ModelShape, batch: Sequence[Sequences]) -> Graphs:
    """Return which CUDA graphs a pass uses (``FULL_AND_PIECEWISE``, vLLM's default)."""
    if all(one.new_tokens == 1 < one.context for one in batch):
        return "whole"
    captured = _CAPTURED.get(experts_kernel(model), _CAPTURED[""])
    return "pieces" if sum(one.number * one.new_tokens for one in batch) <= captured else "none"


def experts_kernel(model: ModelShape) -> Kernel:
    """Return the kind of kernel that reads the weights of experts; empty for 16 bits, and without experts."""
    experts = (one for layer, _ in model.kinds for one in layer if one.parallel == "experts")
    return next(map(kernel_of, experts), "")


def kernel_of(module: Module) -> Kernel:
    """Return the kind of kernel that reads the weights of a module; empty for 16 bits."""
    formats = [one.storage.format for one in module.parameters if one.storage is not None]
    return formats[0].dequantization.kernel if formats else ""


_GROUPED_KERNELS = {"": 4, "mxfp4": 5}
"""Kernels of the experts of a layer beside those of router, activation and sum, by the kernel that reads
their weights."""
_CACHED = 32 << 20
"""Size [B] of the data of a kernel that are in a GPU's cache still (our choice; 50 MB on Hopper)."""
_TOGETHER = 3.0
"""Exponent p with which the times of bytes and arithmetic of a product make its time, (a^p + b^p)^(1/p): they
overlap, but not wholly where both are about equal. A layer of Llama-3.1-8B on an H100 takes 182, 220 and 346
us for 128, 256 and 512 tokens (2026-11-24), where its bytes need 156 and its arithmetic 88, 175 and 327."""
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

    def cost(self, module: Module) -> ModuleCost:
        """Return FLOP and HBM bytes of one call of ``module``.

        Attention reads the cache once; before it, queries and keys are rotated (read and written), and keys
        and values written to the cache (read and written).
        """
        if module.kind != "attention":
            return super().cost(module)
        model = self._model
        kernels = [self._kernels(module, one) for one in self._batch]
        rotated = (model.num_attention_heads + model.num_key_value_heads) * model.head_dim
        if model.latent_width is not None and model.latent_rank is not None:
            rotated = (model.num_attention_heads + 1) * (model.latent_width - model.latent_rank)
        traffic: float = self._tokens(module) * (2 * rotated + model.cache_width) * model.dtype_bytes
        traffic += self._tokens(module) * model.cache_width * (self._cache.paged or model.dtype_bytes)
        flops, own = sum([one.flops for one in kernels]), sum([one.bytes for one in kernels])
        return ModuleCost(flops, traffic + own)

    def launch_s(self, module: Module) -> float:
        """Return the host time of launching the kernels of ``module`` [s]: none within CUDA graphs, which
        begin before the layers or behind attention."""
        graphs = self.graphs
        costs = self.machine.host.compiled_costs
        if graphs == "whole" or (graphs == "pieces" and module.kind != "attention"):
            return 0.0
        seconds = self.kernels(module) * costs.kernel.value
        if module.kind == "attention":
            seconds += costs.attention.value
        if module.parallel == "experts":
            seconds += (costs.mxfp4 if kernel_of(module) == "mxfp4" else costs.experts).value
        return seconds

    @property
    def decodes(self) -> bool:
        """Whether every sequence feeds in one token that follows others."""
        return all(one.new_tokens == 1 < one.context for one in self._batch)

    @cached_property
    def graphs(self) -> Graphs:
        """Which CUDA graphs the pass uses."""
        return graphs_of(self._model, self._batch)

    def kernels(self, module: Module) -> int:
        """Count the kernels of one call of ``module``."""
        match module.kind:
            case "attention":
                return 4 + (self._model.latent_width is not None and self.decodes)
            case "norm":
                return 0 if module.parallel == "keys" else 1
            case "router":
                return 2
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
        quantizes = kernel_of(module) == "float8" and self.machine.accelerator.compute.float8
        attends = "attn" in module.name or "attention" in module.name
        return int(bool(quantizes) and module.parallel == "row" and attends)

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
        if module.kind == "attention":
            ideal = max(self._arithmetic_s(cost), cost.bytes / gpu.hbm_rate)
            seconds = self._attention_s(module, cost, backward=False) or ideal
        elif module.kind in ("linear", "router"):
            seconds = self._product_s(module, cost)
        else:
            seconds = self._pointwise_s(module, cost)
        return seconds + self.kernels(module) * gpu.kernels.kernel_latency.value

    def _pointwise_s(self, module: Module, cost: ModuleCost) -> float:
        """Return the time of a kernel that works element by element [s]: one of Inductor's, or of vLLM's own
        around experts."""
        if module.kind == "activation" and not self.kernels(module):
            return 0.0  # its data never leave the product
        gpu, rate = self.machine.accelerator, self.machine.accelerator.kernels.pointwise
        inductor = module.kind in ("norm", "activation") and module.share == 1
        if rate is None or not inductor or cost.bytes < _CACHED:
            return cost.bytes / gpu.hbm_rate
        return cost.bytes / rate.value

    def _product_s(self, module: Module, cost: ModuleCost) -> float:
        """Return the time of a product [s], or of the grouped products of experts, without the latency of
        their kernels."""
        gpu, code = self.machine.accelerator, self.machine.accelerator.kernels
        stored, kernel = self._stored(module), kernel_of(module)
        if stored and (kernel == "" or not self._fuses(module)):
            return self._decoded_elsewhere_s(module, cost)
        native = kernel == "float8" and gpu.compute.float8 is not None
        kernel = "int8" if kernel == "float8" and not native else kernel
        read = gpu.hbm_bandwidth.value * code.read_efficiency.value
        reading_s = (cost.bytes - stored + stored / code.share(kernel)) / read
        decodes = bool(kernel) and not native
        peak = gpu.peak("float8" if native else self._model.dtype)
        if kernel != "mxfp4":  # whose experts are as fast as those of 16 bits
            peak *= code.float8_products.value if native else code.decoded.value if decodes else 1.0
        rows = _ROUNDED if decodes else code.least_rows.value
        arithmetic_s = self._padded_work(module, cost, rows) / peak
        seconds: float = (reading_s**_TOGETHER + arithmetic_s**_TOGETHER) ** (1 / _TOGETHER)
        return seconds + decodes * code.weight_latency.value * (2 if module.parallel == "experts" else 1)

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
        if self._model.latent_width is not None and sequences.new_tokens < sequences.context:
            return absorbed_kernels(self._model, sequences, self._cache)
        return super()._kernels(module, sequences, backward=backward)


class LaunchedTiming(FusedTiming):
    """A LaunchedTiming has the durations of fused kernels that the host launches one by one, as with
    ``--enforce-eager``."""

    graphs = "none"


class FusedPassTimings(PassTimings):
    """FusedPassTimings are the durations of modules with fused kernels."""

    _kind: ClassVar = FusedTiming

    def timing(self, batch: tuple[Sequences, ...]) -> Timing:
        """Return the timing of one pass."""
        return self._kind(
            machine=self._machine, model=self._model, batch=batch, zero3=False, cache=self._cache
        )


class LaunchedPassTimings(FusedPassTimings):
    """LaunchedPassTimings are the durations of modules with fused kernels that the host launches."""

    _kind: ClassVar = LaunchedTiming
