"""vLLM's engine, behind the few calls that runs need (child process only).

The calls are those of vLLM 0.25.1, with the engine in this process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import vllm
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.llm_engine import LLMEngine


class Output(NamedTuple):
    """New tokens of a request after a step."""

    key: str
    tokens: Sequence[int]
    cached: int
    """Number of tokens of the prompt that were found in the prefix cache."""
    finished: bool


class Engine:
    """An engine with random weights that serves requests of tokens."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        usage = UsageContext.OPENAI_API_SERVER  # whose defaults are those of vllm serve
        self._engine = LLMEngine.from_engine_args(EngineArgs(**options), usage_context=usage)
        self._config = self._engine.vllm_config
        self._core = getattr(self._engine.engine_core, "engine_core", None)
        cache, self._number = self._config.cache_config, 0
        self.vocabulary = int(self._config.model_config.get_vocab_size())
        self.blocks, self.block_size = int(cache.num_gpu_blocks), int(cache.block_size)
        self.tokens = int(self._config.scheduler_config.max_num_batched_tokens)
        """Largest number of tokens of a step."""
        self.steps: list[tuple[float, ...]] = []
        """For each scheduled step: begin, time of the scheduler [s], tokens, sequences, and the numbers of
        running, waiting and preempted requests."""
        self.compilations = 0
        """Number of Triton kernels that this process compiled since it was set to 0."""
        self._log_steps(getattr(self._core, "scheduler", None))
        self._count_compilations()
        self._spread_experts()

    @property
    def sees_compilations(self) -> bool:
        """Whether the worker is in this process, where compilations are counted."""
        return self._worker is not None

    @property
    def _worker(self) -> Any:
        """The worker of a single GPU; None for an engine with several."""
        executor = getattr(self._core, "model_executor", None)
        return getattr(getattr(executor, "driver_worker", None), "worker", None)

    def _log_steps(self, scheduler: Any) -> None:
        if scheduler is None:
            return
        schedule = scheduler.schedule

        def logged(*given: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            found = schedule(*given, **named)
            if found.total_num_scheduled_tokens:
                taken = time.perf_counter() - begin
                preempted = len(getattr(found, "preempted_req_ids", None) or ())
                work = found.total_num_scheduled_tokens, len(found.num_scheduled_tokens)
                state = len(scheduler.running), len(scheduler.waiting), preempted
                self.steps.append((begin, taken, *work, *state))
            return found

        scheduler.schedule = logged

    def _count_compilations(self) -> None:
        """Count kernels that are compiled while requests are served, as vLLM's own monitor sees them."""
        with contextlib.suppress(ImportError):
            from triton import knobs

            before = knobs.runtime.jit_post_compile_hook

            def counted(**named: Any) -> Any:
                self.compilations += 1
                return None if before is None else before(**named)

            knobs.runtime.jit_post_compile_hook = counted

    def _spread_experts(self) -> None:
        """Set biases of a mixture to zero: random ones add up to more than what is computed of a token, so
        that all tokens would choose the same experts."""
        model = getattr(getattr(self._worker, "model_runner", None), "model", None)
        parameters = [] if model is None else list(model.named_parameters())
        mixed = any(".experts." in name for name, _ in parameters)
        for name, one in parameters:
            if mixed and name.endswith("bias"):
                one.data.zero_()

    def facts(self) -> dict[str, Any]:
        """Return what the engine has chosen, and its memory [B]."""
        config = self._config
        return {
            "vllm": vllm.__version__,
            "kv_blocks": self.blocks,
            "block_size": self.block_size,
            "max_num_batched_tokens": self.tokens,
            "max_num_seqs": int(config.scheduler_config.max_num_seqs),
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "enable_prefix_caching": bool(config.cache_config.enable_prefix_caching),
            "cudagraph_capture_sizes": list(config.compilation_config.cudagraph_capture_sizes or ()),
            "memory": dict(self._memory()),
        }

    def _memory(self) -> Iterator[tuple[str, int]]:
        """Yield the memory [B] that the worker of a single GPU reports, and that of the GPU."""
        worker, runner = self._worker, getattr(self._worker, "model_runner", None)
        reported = {
            "weights": (runner, "model_memory_usage"),
            "peak_activation": (worker, "peak_activation_memory"),
            "outside_torch": (worker, "non_torch_memory"),
            "kv_cache": (worker, "available_kv_cache_memory_bytes"),
            "cuda_graphs": (worker, "cudagraph_memory_estimate"),
        }
        for name, (owner, attribute) in reported.items():
            if (size := getattr(owner, attribute, None)) is not None:
                yield name, int(size)
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            yield from (("used", total - free), ("total", total))

    @property
    def busy(self) -> bool:
        """Whether a request is not finished."""
        return bool(self._engine.has_unfinished_requests())

    def add(self, prompt: Sequence[int], output: int) -> str:
        """Add a request that generates exactly ``output`` tokens, and return its key."""
        self._number += 1
        key = f"r{self._number}"
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=output,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(key, TokensPrompt(prompt_token_ids=list(prompt)), sampling)
        return key

    def step(self) -> Iterator[Output]:
        """Schedule and compute a step; yield the tokens that are there."""
        for one in self._engine.step():
            tokens = one.outputs[0].token_ids if one.outputs else ()
            yield Output(one.request_id, tokens, int(one.num_cached_tokens or 0), bool(one.finished))

    def forget_prefixes(self) -> None:
        """Let no later request find a prefix of earlier ones."""
        self._engine.reset_prefix_cache()
