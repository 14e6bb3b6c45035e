"""What programs cost besides copies and the GPU's arithmetic: the host thread, memory that is new or cached,
and kernels of compiled engines.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from simoffload.documents import Frozen
from simoffload.hardware.quantities import (
    Count,
    EfficiencyCurve,
    KernelTable,
    PositiveMultiple,
    PositiveSeconds,
    Provenance,
    RowsCurve,
    Share,
    Sourced,
    saturating,
    whole_rate,
)
from simoffload.units import BytesPerSecond, Seconds

# -- thread costs ----------------------------------------------------------------------------------
# Costs of the Python thread that drives a GPU: under DeepSpeed, in training, under PyTorch's FSDP and under
# Hugging Face Accelerate.


class DeepSpeedCosts(Frozen):
    """Time that the Python thread that drives a GPU spends under DeepSpeed, per event."""

    ranks: Sourced[Count]
    """Largest number of ranks on one host with which the costs were measured, here or on the machine from
    which they are scaled."""
    module_call: Sourced[Seconds]
    """Time of the call of a module that launches one kernel."""
    operation: Sourced[PositiveSeconds]
    """Time of every further PyTorch operation of a module."""
    linear_call: Sourced[Seconds]
    """Time of the call of a linear layer under ZeRO-3, which replaces it by an autograd function of its
    own."""
    hook: Sourced[Seconds]
    """Time of ZeRO-3's hooks before and after a module."""
    hook_input: Sourced[Seconds]
    """Time added for every tensor that a module receives as a positional argument, because ZeRO-3 applies an
    autograd function to it."""
    fetch_call: Sourced[Seconds]
    """Time of a call that gathers what a module needs immediately."""
    prefetch_call: Sourced[Seconds]
    """Time of a call that gathers parameters ahead of their use."""
    gathered_parameter: Sourced[Seconds]
    """Time for every parameter that is brought to the GPU."""
    copy_call: Sourced[Seconds]
    """Time added for a parameter that is copied from host memory asynchronously, or from pageable memory."""
    blocking_copy_call: Sourced[Seconds]
    """Time added for a parameter whose copy blocks the thread, in addition to the copy itself."""
    collective_call: Sourced[Seconds]
    """Time added on several ranks for every call that gathers."""
    coalesced_call: Sourced[Seconds]
    """Time added on several ranks for a call that gathers several parameters, which are packed and
    unpacked."""
    collective_parameter: Sourced[Seconds]
    """Time added on several ranks for every parameter that is gathered."""
    fetch_wait: Sourced[Seconds]
    """Time for handling a module's wait for parameters in flight, in addition to the wait itself."""
    released_parameter: Sourced[Seconds]
    """Time for every parameter that is released."""
    cold_share: Sourced[Share]
    """Slow-down of the thread by cold caches after a blocking copy, or after waiting for reads, as a fraction
    of the duration of that copy or wait. It does not apply to asynchronous copies of a single rank, most of
    which end before the thread waits for them."""
    cold_limit: Sourced[Seconds]
    """Longest time that one wait adds in this way."""
    pass_overhead: Sourced[Seconds]
    """Time of a forward pass outside of its modules: masks, positions, choice of the next token."""


class TrainingCosts(Frozen):
    """Time that the Python thread spends in training in addition to the costs of inference, per event."""

    graph: Sourced[Annotated[float, Field(ge=0, le=10)]]
    """Fraction by which the launches of the forward pass take longer when autograd records them."""
    checkpoint: Sourced[Seconds]
    """Time for a layer that keeps only its input: saving, and later restoring, the state of the random number
    generators."""
    backward_call: Sourced[Seconds]
    """Time of the backward pass of a module that launches kernels, with ZeRO-3's hooks before and after
    it."""
    gradient: Sourced[Seconds]
    """Time for each complete gradient: its hook, its bucket, and its transfer to where it is accumulated."""
    reduce_call: Sourced[Seconds]
    """Time for each bucket that is reduced."""
    boundary_gradient: Sourced[Seconds]
    """Time added in the last micro-step for every gradient that goes to an offloaded optimizer."""
    step_call: Sourced[Seconds]
    """Time of a step of the optimizer."""
    sub_group_call: Sourced[Seconds]
    """Time for every sub-group in that step."""
    updated_parameter: Sourced[Seconds]
    """Time for every parameter tensor in that step."""


class FsdpTimes(Frozen):
    """Time that the Python thread spends under FSDP, per event."""

    ranks: Sourced[Count]
    """Largest number of ranks on one host with which the costs were measured, here or on the machine from
    which they are scaled."""
    operation: Sourced[Seconds]
    """Time of a PyTorch operation of the forward pass that autograd records. Calls of modules take longer
    than in ``deepspeed`` by the ratio of this time to ``deepspeed.operation``."""
    forward_hook: Sourced[Seconds]
    """Time of the hooks before and after a unit in the forward pass, without what they call."""
    backward_hook: Sourced[Seconds]
    """Time of the hooks before and after a unit in the backward pass, with its share of the final hook."""
    unshard: Sourced[Seconds]
    """Time for each unit whose shard is copied and cast."""
    copy_call: Sourced[Seconds]
    """Time added with offloading for every shard or gradient that is copied."""
    gather: Sourced[Seconds]
    """Time added on several ranks for the call of an all-gather."""
    view: Sourced[Seconds]
    """Time added in the forward pass for every parameter of a unit, which becomes a view of the gathered
    tensor."""
    reshard: Sourced[Seconds]
    """Time for each unit that is released."""
    reduce: Sourced[Seconds]
    """Time for each unit whose gradients are reduced."""
    backward_call: Sourced[Seconds]
    """Time of the backward pass of a module that launches kernels."""
    checkpoint: Sourced[Seconds]
    """Time in the forward pass for each layer that keeps only its input."""
    recompute: Sourced[Seconds]
    """Time in the backward pass for each such layer, in addition to the launches of its forward pass."""
    step_call: Sourced[Seconds]
    """Time of a step of the optimizer."""


class FsdpCosts(FsdpTimes):
    """Time that the Python thread spends under FSDP, per event, and rates of AdamW on the CPU.

    ``n`` threads reach 1 / sqrt(1 / (n x thread)^2 + 1 / limit^2), as in ``CpuOptimizer``.
    """

    adam_thread: Sourced[BytesPerSecond]
    """Bytes that one thread of AdamW reads and writes per second in existing tensors: the limit of the
    formula for few threads."""
    adam_limit: Sourced[BytesPerSecond]
    """Bytes that all threads of one process read and write per second: the limit of the formula for many
    threads."""
    page_thread: Sourced[BytesPerSecond]
    """Rate at which one thread obtains pages from the operating system for AdamW's new tensors; each page is
    cleared when it is first touched. Only the time in addition to writing the tensors counts."""
    page_limit: Sourced[BytesPerSecond]
    """Largest rate at which all threads of one process together obtain pages from the operating system."""

    def adamw_rate(self, threads: float, *, traffic: int, new: int, share: float) -> int:
        """Return the rate [B/s] at which AdamW reads and writes memory when it updates one parameter.

        The update moves ``traffic`` [B], of which ``new`` [B] belong to newly allocated tensors.

        ``share`` [B/s] is the part of the host's memory bandwidth that each of the processes has.
        """
        loops = saturating(threads * self.adam_thread.value, min(self.adam_limit.value, share))
        pages = saturating(threads * self.page_thread.value, self.page_limit.value)
        return whole_rate(traffic / (traffic / loops + new / pages))


class EagerCosts(Frozen):
    """Time that the Python thread spends in transformers' code without DeepSpeed, per event."""

    operation: Sourced[Seconds]
    """Time of a PyTorch operation. Calls of modules take longer or shorter than in ``deepspeed`` by the ratio
    of this time to ``deepspeed.operation``."""
    hook: Sourced[Seconds]
    """Time of Accelerate's hooks before and after a module, without the tensors that they move."""
    tensor: Sourced[Seconds]
    """Time for each tensor that Accelerate brings to the GPU and drops, in addition to its copy: Python code,
    allocation, and emptying PyTorch's cache of GPU memory."""
    all_reduce: Sourced[Seconds]
    """Time for each result that the GPUs of tensor parallelism sum or gather, with its share of the wrappers
    of divided layers."""


class FsdpReference(FsdpTimes):
    """Times under FSDP on a reference host, and how fast its Python thread is otherwise."""

    inference_operation: Sourced[PositiveSeconds]
    """Time of a PyTorch operation in inference under DeepSpeed on that host. On another host the times are
    longer by the ratio of its ``deepspeed.operation`` to this one."""


class Multiples(Frozen):
    """Times of a host's thread as multiples of its time of a PyTorch operation under DeepSpeed
    (``deepspeed.operation``)."""

    def times(self, operation_s: float) -> dict[str, Any]:
        """Return the statements of a profile about a host with such a time [s] of an operation."""
        return {
            key: {"value": f"{count.value * operation_s * 1e6:.4f} us", **_provenance(count)}
            for key, count in self
        }


class EagerReference(Multiples):
    """The numbers of ``EagerCosts`` as multiples of ``deepspeed.operation`` of the same host."""

    operation: Sourced[PositiveMultiple]
    """Multiple of a PyTorch operation without DeepSpeed."""
    hook: Sourced[PositiveMultiple]
    """Multiple of Accelerate's hooks before and after a module."""
    tensor: Sourced[PositiveMultiple]
    """Multiple of a tensor that Accelerate brings to the GPU and drops."""
    all_reduce: Sourced[PositiveMultiple]
    """Multiple of a result that the GPUs of tensor parallelism sum or gather."""


_SLOW = 1e6
"""Rate [B/s] below which four digits of GB/s would round to nothing, or nearly."""


@cache
def scaled_costs(
    reference: FsdpReference, *, operation_s: float, loops_thread: float, loops_limit: float, pages: NewMemory
) -> FsdpCosts:
    """Return the costs of a host on which FSDP was not measured.

    Times of the Python thread are proportional to the time of a PyTorch operation in inference; loops over
    tensors run at the host's own rates, and new pages come at those of ``pages``.
    """
    slowdown = operation_s / reference.inference_operation.value
    provenance: dict[str, Any] = {
        "origin": "estimate",
        "source": reference.operation.source,
        "date": reference.operation.date,
    }
    values: dict[str, Any] = {"ranks": reference.ranks}
    for key, cost in reference:
        if key not in ("ranks", "inference_operation"):
            text = f"{cost.value * slowdown * 1e6:.4f} us"
            values[key] = {"value": text, **provenance, "spread": cost.spread}
    for key, rate in (("adam_thread", loops_thread), ("adam_limit", loops_limit)):
        shown = f"{rate / 1e9:.4f} GB/s" if rate >= _SLOW else f"{whole_rate(rate)} B/s"
        values[key] = {"value": shown, **provenance}
    return FsdpCosts.model_validate(
        {**values, "page_thread": pages.page_thread, "page_limit": pages.page_limit}
    )


@cache
def estimated_eager_costs(reference: EagerReference, *, operation_s: float) -> EagerCosts:
    """Return the costs of a host on which they were not measured, from its time of a PyTorch operation under
    DeepSpeed."""
    return EagerCosts.model_validate(reference.times(operation_s))


def _provenance(given: Provenance) -> dict[str, Any]:
    return {"origin": "estimate", "source": given.source, "date": given.date, "spread": given.spread}


# -- rates of what a host and a GPU's driver do besides copying ------------------------------------
# New memory, the page cache, and checksums.
#
# A rate is the bytes over the time that is added to that of the copy itself.


class NewMemory(Frozen):
    """Rates of pageable memory that is new: the kernel maps and clears its pages one by one, and takes them
    back.

    PyTorch frees the memory of a tensor after its use, and glibc returns large blocks to the kernel at once.
    """

    from_gpu: Sourced[BytesPerSecond]
    """Rate of the pages of memory into which one thread copies from a GPU."""
    from_page_cache: Sourced[BytesPerSecond]
    """Rate of the pages of memory into which ``torch.load`` copies from the page cache."""
    huge_pages: Sourced[BytesPerSecond]
    """Rate of the pages of memory for which NumPy requests huge pages."""
    cast: Sourced[BytesPerSecond]
    """Rate of the pages of the result of a cast, of each thread."""
    released: Sourced[BytesPerSecond]
    """Rate at which memory is given back, by any number of threads."""
    page_thread: Sourced[BytesPerSecond]
    """Rate at which one thread of PyTorch's loops obtains pages for new tensors."""
    page_limit: Sourced[BytesPerSecond]
    """Largest rate at which all threads of one process together obtain pages."""


class NewMemoryReference(NewMemory):
    """Rates of new memory on a reference host, and how fast its Python thread is."""

    operation: Sourced[PositiveSeconds]
    """Time of a PyTorch operation under DeepSpeed on that host. ``cast`` and ``released`` of another host,
    which are work of the kernel, are slower by the ratio of its ``deepspeed.operation`` to this one."""

    @cache  # noqa: B019 - references are kept as long as their profiles
    def at(self, operation_s: float) -> NewMemory:
        """Return the rates of a host with such a time [s] of an operation."""
        rates = {key: getattr(self, key) for key in NewMemory.model_fields}
        for key in ("cast", "released"):
            value = rates[key].value * self.operation.value / operation_s
            rates[key] = type(rates[key]).model_construct(**{**dict(rates[key]), "value": value})
        return NewMemory.model_construct(**rates)


class PageCache(Frozen):
    """Rates of the page cache, for finding and entering pages."""

    write: Sourced[BytesPerSecond]
    """Rate of ``write`` into the page cache."""
    copy_file: Sourced[BytesPerSecond]
    """Rate of ``shutil.copyfile`` within the page cache."""


class GpuAllocation(Frozen):
    """What the driver takes to allocate and release a block of GPU memory (cudaMalloc and cudaFree): a time,
    and the bytes over a rate."""

    allocate: Sourced[Seconds]
    """Time of allocating a block."""
    allocate_rate: Sourced[BytesPerSecond]
    """Rate of allocating the bytes of blocks."""
    release: Sourced[Seconds]
    """Time of releasing a block."""
    release_rate: Sourced[BytesPerSecond]
    """Rate of releasing the bytes of blocks."""


# -- compiled engines ------------------------------------------------------------------------------
# Kernels of compiled serving engines (vLLM, torch.compile) on a GPU, and the host thread that launches
# them.
#
# Decode steps are replayed from CUDA graphs, so that only the GPU's own time between kernels counts. Longer
# prefills are not: the host launches their kernels from Python, layer by layer (vLLM,
# ``compilation/cuda_graph.py`` and ``config/compilation.py``: ``cudagraph_capture_sizes``).


Kernel = Literal["", "int4", "int8", "float4", "float8", "mxfp4"]
"""Kind of kernel that reads the weights of a product; empty for 16 bits."""


class UpdateKernels(Frozen):
    """Speed of the kernels that update the states of recurrent layers."""

    chunked: Sourced[Share]
    """Share of the peak rate that products of the chunks of a prompt reach."""
    states: Sourced[Share]
    """Share of the peak bandwidth with which decode steps read and write states."""
    proposed: Sourced[Share]
    """The same where a step checks proposed tokens and writes a state for each."""


class SparseKernels(Frozen):
    """Speed of the kernels of an indexer, and of attention over the rows that it chose."""

    scores: Sourced[Share]
    """Share of the peak rate in FP8 that an indexer's scores of prompts reach; those of decode steps read its
    keys as products of few tokens read weights."""
    choice: Sourced[Share]
    """Share of the peak bandwidth with which the choice reads scores of 4 B."""
    choice_start: Sourced[Seconds]
    """Time of a choice in addition to its bytes and the latency of a kernel."""
    attention: Sourced[Share]
    """Share of the peak rate that attention over chosen rows reaches."""
    rows: Sourced[Share]
    """Share of the peak bandwidth with which it reads them in decode steps, beside its products."""
    attention_start: Sourced[Seconds]
    """Time of attention over chosen rows in addition to its work and the latency of its kernels."""


class ServingKernels(NamedTuple):
    """ServingKernels are all numbers of ``CompiledKernels``, those of a profile or estimates."""

    kernel_latency: Sourced[Seconds]
    read_efficiency: Sourced[Share]
    least_rows: Sourced[Count]
    products: EfficiencyCurve
    product_table: KernelTable | None
    float8_product_table: KernelTable | None
    float4_product_table: KernelTable | None
    expert_table: KernelTable | None
    float8_expert_table: KernelTable | None
    mxfp4_expert_table: KernelTable | None
    prefill_table: KernelTable | None
    decode_table: KernelTable | None
    pointwise: Sourced[BytesPerSecond] | None
    grouped: RowsCurve
    float8_products: Sourced[Share]
    float4_products: Sourced[Share]
    weight_latency: Sourced[Seconds]
    int4: Sourced[Share]
    int8: Sourced[Share]
    float8: Sourced[Share]
    float4: Sourced[Share]
    mxfp4: Sourced[Share]
    decoded: Sourced[Share]
    updates: UpdateKernels
    sparse: SparseKernels
    all_reduce_latency: Sourced[Seconds]
    all_reduce_step: Sourced[Seconds]
    all_reduce_share: Sourced[Share]

    def all_reduce_s(self, gpus: int) -> float:
        """Return the time [s] of an all-reduce among so many GPUs, apart from its bytes: those of a ring go
        on 2 (n - 1) times."""
        return self.all_reduce_latency.value + 2 * (gpus - 2) * self.all_reduce_step.value

    def experts(self, kernel: Kernel) -> KernelTable | None:
        """Return the table of experts whose weights a kind of kernel reads; None without."""
        return {
            "": self.expert_table,
            "float8": self.float8_expert_table,
            "mxfp4": self.mxfp4_expert_table,
        }.get(kernel)

    def native_products(self, dtype: str) -> float:
        """Return the efficiency of products in a type of stored weights over that with 16 bits."""
        return float(getattr(self, f"{dtype}_products").value)

    def share(self, kernel: Kernel) -> float:
        """Return the rate at which a kind of kernel reads weights over that with 16 bits."""
        return 1.0 if kernel == "" else float(getattr(self, kernel).value)

    def deciding(self, kernels: Iterable[Kernel], *, experts: bool) -> tuple[Provenance, ...]:
        """Return the numbers that decide the time of a model with such weights, with or without experts."""
        kernels = tuple(kernels)
        grouped = next(filter(None, map(self.experts, kernels)), None) or self.grouped
        weights = [getattr(self, one) for one in kernels if one]
        decoded = [self.decoded] if weights else []
        if "float4" in kernels:
            decoded.append(self.float4_product_table or self.float4_products)
        return (
            self.kernel_latency,
            self.product_table or self.products,
            *([grouped] if experts else []),
            *weights,
            *decoded,
        )


class CompiledKernels(Frozen):
    """Speed of the kernels of compiled serving on a GPU; what is left out is as in ``unmeasured``."""

    kernel_latency: Sourced[Seconds] | None = None
    """Time that each kernel of a CUDA graph costs in addition to its work; None: ``kernel_latency`` of the
    GPU."""
    read_efficiency: Sourced[Share] | None = None
    """Share of the peak bandwidth with which products of few tokens read their weights; None:
    ``hbm_efficiency``."""
    least_rows: Sourced[Count] | None = None
    """Rows that tensor cores multiply at least: products of fewer tokens take as long; None: 16."""
    products: EfficiencyCurve | None = None
    """Share of the peak rate that the products of a model reach one after the other, at the clock that the
    power limit then allows; None: ``matmul_efficiency``."""
    product_table: KernelTable | None = None
    """Speed of products with 16 bits by their three sizes, which goes before ``products`` and
    ``read_efficiency``; None: not measured."""
    float8_product_table: KernelTable | None = None
    """The same for products in FP8, the rounding of their input included, which goes before
    ``float8_products`` and ``float8``; None: not measured."""
    float4_product_table: KernelTable | None = None
    """The same for products in NVFP4, which goes before ``float4_products`` and ``float4``; None: not
    measured."""
    expert_table: KernelTable | None = None
    """Speed of grouped products of experts with 16 bits, both of a layer, by the tokens of each expert, its
    width and the number of experts that are chosen, which goes before ``grouped``; None: not measured."""
    float8_expert_table: KernelTable | None = None
    """The same for experts in FP8, which goes also before ``float8_products`` and ``float8``; None: not
    measured."""
    mxfp4_expert_table: KernelTable | None = None
    """The same for experts in MXFP4, which goes also before ``mxfp4``; None: not measured."""
    prefill_table: KernelTable | None = None
    """Speed of attention of prompts, by the keys of a token, blocks of queries and the width of a head, which
    goes before ``fused_attention``; None: not measured."""
    decode_table: KernelTable | None = None
    """Speed of attention in decode steps, by the keys of a sequence, sequences x key-value heads and the
    width of a head, which goes before ``fused_attention``; None: not measured."""
    grouped: RowsCurve | None = None
    """Share of the peak rate that grouped products of experts reach, by the tokens of each expert; None: an
    estimate."""
    float8_products: Sourced[Share] | None = None
    """Efficiency of products in FP8 over that of products with 16 bits, each of its own peak; None: an
    estimate."""
    float4_products: Sourced[Share] | None = None
    """The same for products in NVFP4."""
    pointwise: Sourced[BytesPerSecond] | None = None
    """Rate at which the kernels of norms and activation functions that Inductor makes read and write, for so
    many tokens that their data are not in the cache; None: that of other kernels."""
    weight_latency: Sourced[Seconds] | None = None
    """Time that a product with weights of fewer than 16 bits, which its kernel decodes, costs in addition to
    one with 16 bits; None: an estimate."""
    int4: Sourced[Share] | None = None
    """Rate at which the kernels of vLLM read weights of 4 bits in groups (Machete on Hopper, Marlin on other
    NVIDIA GPUs from Ampere on, Triton on AMD), over that of 16 bits; None: an estimate."""
    int8: Sourced[Share] | None = None
    """The same for weights of 8 bits that are decoded, FP8 on GPUs without such arithmetic among them."""
    float8: Sourced[Share] | None = None
    """The same for weights in FP8 that tensor cores multiply as they are."""
    float4: Sourced[Share] | None = None
    """The same for weights in NVFP4 that tensor cores multiply as they are; where they do not, those of
    ``int4``."""
    mxfp4: Sourced[Share] | None = None
    """The same for experts in MXFP4 (Triton kernels on Hopper, FlashInfer on Blackwell, Marlin on others)."""
    decoded: Sourced[Share] | None = None
    """Rate of large products with weights that are decoded over that of products with 16 bits; None: an
    estimate."""
    updates: UpdateKernels | None = None
    """Kernels of recurrent layers; None: estimates."""
    sparse: SparseKernels | None = None
    """Kernels of sparse attention; None: estimates."""
    all_reduce_latency: Sourced[Seconds] | None = None
    """Time of an all-reduce over links between two GPUs in a CUDA graph, apart from its bytes; None: an
    estimate."""
    all_reduce_step: Sourced[Seconds] | None = None
    """Time of each step more with more GPUs, two for each of them; None: an estimate."""
    all_reduce_share: Sourced[Share] | None = None
    """Rate at which its bytes move over that of the links; None: an estimate."""

    def serving(self, **of_gpu: Provenance) -> ServingKernels:
        """Return all numbers of a GPU whose profile is completed: those that are stated, others ``of_gpu``,
        measured with other kernels."""
        stated = {key: one for key, one in self if one is not None}
        return ServingKernels(**{**dict.fromkeys(_OPTIONAL), **of_gpu, **stated})


_TABLES = (
    *("product_table", "float8_product_table", "float4_product_table"),
    *("expert_table", "float8_expert_table"),
)
_OPTIONAL = ("pointwise", *_TABLES, "mxfp4_expert_table", "prefill_table", "decode_table")
"""Keys that need no stand-in of another GPU."""


class UnmeasuredKernels(CompiledKernels):
    """What is assumed of GPUs on which the kernels of compiled serving were not measured, apart from what
    their other kernels tell."""

    least_rows: Sourced[Count]
    """Rows that tensor cores multiply at least."""
    grouped: RowsCurve
    """Share of the peak rate that grouped products of experts reach."""
    float8_products: Sourced[Share]
    """Efficiency of products in FP8 over that of products with 16 bits."""
    float4_products: Sourced[Share]
    """The same for products in NVFP4."""
    weight_latency: Sourced[Seconds]
    """Time that a product with weights that its kernel decodes costs in addition."""
    int4: Sourced[Share]
    """Rate of reading weights of 4 bits over that of 16 bits."""
    int8: Sourced[Share]
    """The same for weights of 8 bits that are decoded."""
    float8: Sourced[Share]
    """The same for weights in FP8 that tensor cores multiply as they are."""
    float4: Sourced[Share]
    """The same for weights in NVFP4 that tensor cores multiply as they are."""
    mxfp4: Sourced[Share]
    """The same for experts in MXFP4."""
    decoded: Sourced[Share]
    """Rate of large products with weights that are decoded over that of products with 16 bits."""
    updates: UpdateKernels
    """Kernels of recurrent layers: chunked products of prompts, and updates of states."""
    sparse: SparseKernels
    """Kernels of sparse attention: scores of an indexer, the choice of rows, attention to them."""
    all_reduce_latency: Sourced[Seconds]
    """Time of an all-reduce over links between two GPUs in a CUDA graph, apart from its bytes."""
    all_reduce_step: Sourced[Seconds]
    """Time of each step more with more GPUs."""
    all_reduce_share: Sourced[Share]
    """Rate at which its bytes move over that of the links."""


class CompiledCosts(Frozen):
    """Time that the host thread of a serving engine spends, per event."""

    step: Sourced[Seconds]
    """Time of a step before its first kernel: scheduling and preparing its input. While a decode step is
    computed, the next one is prepared (``async_scheduling`` of vLLM)."""
    kernel: Sourced[Seconds]
    """Time of launching a kernel of compiled code that is not in a CUDA graph."""
    attention: Sourced[Seconds]
    """Time of calling attention between two pieces of compiled code."""
    piece: Sourced[Seconds]
    """Time of calling such a piece where it is in no CUDA graph, the launches of its kernels excepted."""
    experts: Sourced[Seconds]
    """Time of calling the experts of a layer, their kernels excepted."""
    mxfp4: Sourced[Seconds]
    """The same for the Triton kernels of experts in MXFP4, which sort and prepare their arguments in
    Python."""
    sequence: Sourced[Seconds]
    """Time of a step for every sequence of it: scheduling, its input, and its output."""
    prompt_token: Sourced[Seconds]
    """Time for every token of a prompt: adding the request, hashing its blocks, finding and allocating
    them."""
    block: Sourced[Seconds]
    """Time of a connector for every block of a prefix: finding it, a place for it, and its end."""
    block_copy: Sourced[Seconds]
    """Time of submitting a copy of many that a connector submits in one call, by which their transfer takes
    longer than that of as many bytes in one piece."""


class CompiledReference(Multiples):
    """The numbers of ``CompiledCosts`` as multiples of ``deepspeed.operation`` of the same host."""

    step: Sourced[PositiveMultiple]
    """Multiple of a step before its first kernel."""
    kernel: Sourced[PositiveMultiple]
    """Multiple of launching a kernel of compiled code."""
    attention: Sourced[PositiveMultiple]
    """Multiple of calling attention between two pieces of compiled code."""
    piece: Sourced[PositiveMultiple]
    """Multiple of calling such a piece where it is in no CUDA graph."""
    experts: Sourced[PositiveMultiple]
    """Multiple of calling the experts of a layer."""
    mxfp4: Sourced[PositiveMultiple]
    """Multiple of calling those in MXFP4."""
    sequence: Sourced[PositiveMultiple]
    """Multiple of a sequence of a step."""
    prompt_token: Sourced[PositiveMultiple]
    """Multiple of a token of a prompt."""
    block: Sourced[PositiveMultiple]
    """Multiple of a block of a prefix that a connector loads."""
    block_copy: Sourced[PositiveMultiple]
    """Multiple of a copy that a connector submits with many others."""


@cache
def estimated_compiled_costs(reference: CompiledReference, *, operation_s: float) -> CompiledCosts:
    """Return the costs of a host on which they were not measured, from its time of a PyTorch operation under
    DeepSpeed."""
    return CompiledCosts.model_validate(reference.times(operation_s))
