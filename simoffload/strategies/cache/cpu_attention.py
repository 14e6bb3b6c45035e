"""Attention on the CPU over a cache in host memory, as in DeepSpeed's example of ZeRO-Inference since 2023.

Reference: tjruwase/transformers@35515d7d (branch kvcache-offload-cpu, of transformers 4.32), modeling_opt.py,
modeling_llama.py and modeling_bloom.py where they test ``kv_offload``; DeepSpeedExamples,
inference/huggingface/zero_inference/model-support.md. The buffer has room for the longest context from the
start. What copies do: ``copy_kernel_cuda`` of PyTorch (aten/src/ATen/native/cuda/Copy.cu).

*Prompt.* Each layer copies keys and values to the buffer, on a stream of its own, before its kernels of
attention are launched. As the buffer is longer than the prompt, its part for the prompt is not contiguous:
PyTorch copies to a new pageable tensor, for which the host thread waits in any case, and the CPU copies that
to the buffer. Neither pinned memory nor ``non_blocking`` lets the copy run beside the computation; with
``non_blocking`` the GPU casts to the buffer's type first, so that more bytes cross PCIe.

*Later tokens.* Each layer copies keys and values of the new tokens, the query in single precision and the
mask to host memory, and the host thread waits. PyTorch's CPU kernels then compute scores, softmax and result
in single precision. The result goes back to the GPU; keys and values never do. A product of one query with
all keys reads each key once for two operations, so that host memory limits its rate if the cores are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from simoffload.hardware import Machine
from simoffload.models import SINGLE, CpuAttentionCode, ModelShape, Sequences
from simoffload.results import cause_text
from simoffload.schedule import Cause, CauseKind, Dependency
from simoffload.strategies.cache.cache_updates import CACHE_LABEL
from simoffload.strategies.cache.kv_cache import KvCache
from simoffload.strategies.held import Held, pinned_rounding
from simoffload.strategies.memory import KEPT_BY_MALLOC, cache_term
from simoffload.strategies.passes.pass_writer import COMPUTE, Call, Hook, PassWriter, StagePass
from simoffload.strategies.passes.streams import HOST
from simoffload.strategies.passes.timing import picoseconds
from simoffload.workload import Inference

ONE_QUERY = 0.31
"""Rate at which a thread reads keys, or values, in a product with one query of each head, as a share of that
of loops: ``torch.bmm`` in single precision, whichever dimension of the cache is the outer one
(docs/measurements/kv-cache.md, Products on the CPU)."""


class MemoryWork(NamedTuple):
    """MemoryWork is what the CPU moves in host memory."""

    traffic: int = 0
    """Size [B] of what it reads and writes."""
    new: int = 0
    """Size [B] of the memory that the kernel maps and clears for it; included in ``traffic`` as written."""
    returned_pages: int = 0
    """Size [B] of the memory that it returns to the kernel."""
    products: int = 0
    """Part of ``traffic`` [B] that is keys and values read by batched products."""


class CpuAttention(NamedTuple):
    """A CpuAttention is what the cache of one layer moves in a pass."""

    prompt: tuple[int, ...] = ()
    """Sizes [B] of keys and values of prompts that are copied to host memory; () if there are no prompts."""
    stored: MemoryWork = MemoryWork()
    """What the CPU does to copy them to the buffer."""
    sent: tuple[int, ...] = ()
    """Sizes [B] of keys, values, queries and masks of later tokens that are copied to host memory."""
    attended: MemoryWork = MemoryWork()
    """What the CPU does for the attention of these tokens."""
    returned: int = 0
    """Size [B] of its result, which is copied to the GPU."""
    tier: str = ""
    """Name of the tier that holds the cache."""


def cpu_attention(cache: KvCache, model: ModelShape, batch: Sequence[Sequences]) -> CpuAttention:
    """Return what each layer moves in a pass.

    Sequences without earlier tokens are prompts.
    """
    prompts = [one for one in batch if one.new_tokens == one.context]
    later = [one for one in batch if one.new_tokens < one.context]
    found = CpuAttention(tier=cache.tier)
    if prompts:
        found = _stored(cache, model, sum(one.number * one.new_tokens for one in prompts))
    if later:
        sent, work, returned = _attended(model, later)
        found = found._replace(sent=sent, attended=work, returned=returned)
    return found


def _code(model: ModelShape) -> CpuAttentionCode:
    code = model.traits.cpu_attention
    assert code is not None, f"{model.family}: checked with the section kv_cache"
    return code


def element_bytes(model: ModelShape) -> int:
    """Return the size of an element of the buffer [B]: that of single precision where ``torch.empty`` got no
    data type."""
    return SINGLE if _code(model).single else model.dtype_bytes


def _width(model: ModelShape) -> int:
    """Return the elements of the keys of one token in one layer, which are those of its values, too."""
    return model.num_key_value_heads * model.head_dim


def new_memory(*sizes: int) -> int:
    """Return the size [B] of those tensors that are too large for glibc to use their memory again."""
    return sum(size for size in sizes if size > KEPT_BY_MALLOC)


def _stored(cache: KvCache, model: ModelShape, tokens: int) -> CpuAttention:
    """Return the copies of keys and values of ``tokens`` tokens to the buffer, whose pages are new unless
    they are pinned."""
    size, element = model.dtype_bytes, element_bytes(model)
    copied = element if cache.asynchronous else size
    numel = tokens * _width(model)
    work = MemoryWork(
        2 * numel * (copied + element),
        0 if cache.pin_memory else 2 * numel * element,
        new_memory(numel * copied, numel * copied),
    )
    return CpuAttention((numel * copied,) * 2, work, tier=cache.tier)


def _attended(model: ModelShape, batch: Sequence[Sequences]) -> tuple[tuple[int, ...], MemoryWork, int]:
    """Return the sizes of copies to host memory, the work of the CPU and the size of the result [B].

    Keys and values are read as they are kept; a buffer in 16 bit is first cast to new tensors, and heads of
    grouped queries are first repeated in new tensors (``repeat_kv``).
    """
    code, size, element = _code(model), model.dtype_bytes, element_bytes(model)
    hidden = model.num_attention_heads * model.head_dim
    tokens = sum(one.number * one.new_tokens for one in batch)
    cached = sum(one.number * one.context for one in batch) * _width(model)
    repeated = sum(one.number * one.context for one in batch) * hidden
    pairs = sum(one.number * one.new_tokens * one.context for one in batch)
    scores = pairs * model.num_attention_heads * SINGLE
    own = tokens * _width(model)
    mask = pairs * model.num_attention_heads * SINGLE + pairs if code.biases else pairs * size

    read, fresh = cached, 0
    if repeated > cached:
        read = fresh = repeated
    elif element < SINGLE:
        fresh = cached
    traffic = 2 * (cached * element + fresh * SINGLE) if fresh else 0  # read to repeat or cast them
    traffic += 2 * read * SINGLE + 2 * own * (size + element) + code.passes * scores
    new = new_memory(fresh * SINGLE, fresh * SINGLE)
    work = MemoryWork(traffic, new, new, 2 * read * SINGLE)
    sent = (own * size, own * size, tokens * hidden * SINGLE, mask)
    return sent, work, tokens * hidden * (size if code.returns_half else SINGLE)


def cpu_rate(machine: Machine, work: MemoryWork, *, ranks: int) -> int:
    """Return the rate [B/s] of the traffic of ``work`` by one of ``ranks`` processes.

    Products have the rate of their threads, up to that of the memory; everything else has the rate of
    PyTorch's loops over existing tensors. New memory takes longer, as in FSDP's AdamW and Accelerate's copies
    of mapped files (docs/measurements/fsdp.md).
    """
    cpu, processes = machine.host.cpu_optimizer, machine.ranks_per_node(ranks)
    threads = machine.cores_per_rank(ranks)
    share = cpu.limit.value / max(cpu.numa_nodes.value, processes)
    costs, seconds = machine.host.fsdp_costs, 0.0
    if read := work.products:
        seconds += read / costs.adamw_rate(ONE_QUERY * threads, traffic=read, new=0, share=share)
    if others := work.traffic - work.products:
        seconds += others / costs.adamw_rate(threads, traffic=others, new=work.new, share=share)
    return int(work.traffic / seconds)


def cpu_attention_memory(
    cache: KvCache, model: ModelShape, workload: Inference, *, copies: int
) -> tuple[Held, ...]:
    """Return the memory of the cache of one GPU: its layer in HBM, and with ``copies`` GPUs on a host that of
    its host memory.

    OPT and Llama have one buffer for keys and values of all layers, BLOOM one for each of both.
    """
    code, width, batch = _code(model), _width(model), workload.batch_size
    remedy = "lower batch_size, prompt_length or output_length"
    numel = model.num_hidden_layers * batch * workload.max_context * width
    buffers = (2 * numel * SINGLE,) if code.single else (numel * element_bytes(model),) * 2
    prompt = cpu_attention(cache, model, (Sequences(batch, workload.prompt_length, workload.prompt_length),))
    last = cpu_attention(cache, model, (Sequences(batch, 1, workload.max_context),))
    layer = 2 * batch * workload.prompt_length * width
    on_gpu = layer * (model.dtype_bytes + (element_bytes(model) if cache.asynchronous else 0) // 2)
    terms = [
        Held("hbm", "keys and values of a layer", on_gpu, remedy=remedy, kind="staging"),
        cache_term("dram", copies * sum(buffers), pinned=cache.pin_memory),
    ]
    if cache.pin_memory:
        rounding = copies * pinned_rounding(buffers)
        terms.append(Held("dram", "rounding of the pinned cache", rounding, pinned=True))
    temporary = max(prompt.prompt[0], last.attended.new)
    return (*terms, Held("dram", "copies of a layer's cache", copies * temporary, remedy=remedy))


COMMAND = "zero-inference.sh"
"""File with the command of DeepSpeed's example."""
_EXAMPLE = """\
# in inference/huggingface/zero_inference of DeepSpeedExamples, which writes its own ds_config, with
# pip install git+https://github.com/tjruwase/transformers@kvcache-offload-cpu
# --model takes the name on Hugging Face
"""


def example_command(
    cache: KvCache, model: ModelShape, workload: Inference, options: Sequence[str], *, ranks: int
) -> str:
    """Return the command that runs the model with the cache, and with ``options`` for its weights."""
    flags = {"--pin_kv_cache": cache.pin_memory, "--async_kv_offload": cache.asynchronous}
    command = (
        f"deepspeed --num_gpus {ranks} run_model.py --model {quote(model.unquantized_name)}",
        f"--batch-size {ranks * workload.batch_size} --prompt-len {workload.prompt_length}",
        f"--gen-len {workload.output_length}",
        *options,
        "--kv-offload",
        *(flag for flag, given in flags.items() if given),
    )
    return _EXAMPLE + " ".join(command) + "\n"


# --------------------------------------------------------------------------------------------------
# Attention on the CPU as a hook: the cache stays in host memory, where the host thread attends to it.


class AttentionOnCpu(Hook):
    """Each layer copies keys and values to host memory, and the CPU attends to those of earlier tokens."""

    def __init__(self, cache: KvCache, stages: Sequence[ModelShape]) -> None:
        """``stages``: the part of the model on a GPU of each stage."""
        self.streams, self._cache, self._stages = cache.streams, cache, stages

    state = Hook.of_modules

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Find what each layer does."""
        self._work = cpu_attention(self._cache, self._stages[stage.stage], stage.batch)

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:
        """Write the copies, the work of the CPU, and the GPU's kernels of attention.

        Keys and values of a prompt leave before the kernels are launched; for later tokens the kernels are
        those before the CPU's part.
        """
        if call.module.kind != "attention":
            return False
        work, compute = self._work, COMPUTE + call.gpu
        if work.prompt:
            out.flush()
            pages = out.machine.host.fresh_memory.from_gpu.value
            new = picoseconds(new_memory(*work.prompt) / pages)
            behind = out.so_far(HOST, compute)
            self._copy(out, self.first, work.prompt, to_device=False, longer=new, behind=behind)
            self._on_cpu(out, "cache-stores", work.stored)
            out.flush()
            after = (*out.so_far(HOST), *(one for one in after if one.stream != out.first + HOST))
        out.add("compute", compute, fixed=duration, after=after)
        if work.sent:
            self._copy(out, compute, work.sent, to_device=False)
            self._on_cpu(out, "cpu-attention", work.attended)
            out.flush()
            self._copy(out, compute, (work.returned,), to_device=True, behind=out.so_far(HOST))
        return True

    def _copy(
        self,
        out: PassWriter,
        stream: int,
        sizes: Sequence[int],
        *,
        to_device: bool,
        longer: int = 0,
        behind: tuple[Dependency, ...] = (),
    ) -> None:
        """Write copies of pageable memory, for which the host waits."""
        route, latency = out.copies(sizes, to_device=to_device, pinned=False, cache=self._work.tier)
        fixed, size = latency + longer, sum(sizes)
        out.add("copy", stream, fixed=fixed, size=size, route=route, label=CACHE_LABEL, after=behind)
        out.host_waits(stream)
        out.spend(out.costs.copy_call.value * len(sizes))

    def _on_cpu(self, out: PassWriter, kind: CauseKind, work: MemoryWork) -> None:
        out.flush()
        cause = Cause(kind).of_cache(self._work.tier)
        route = out.cpu_work(cause, cpu_rate(out.machine, work, ranks=out.ranks))
        out.add("cpu", HOST, size=work.traffic, route=route, label=cause_text(Cause(kind)))
        out.spend(work.returned_pages / out.machine.host.fresh_memory.released.value)
