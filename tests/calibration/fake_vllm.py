"""Packages in place of PyTorch and vLLM, with an engine whose steps take a millisecond."""

from __future__ import annotations

from pathlib import Path

_ENGINE = """\
import json, os, time
from types import SimpleNamespace as Space
from triton import knobs

class Scheduler:
    def __init__(self):
        self.running, self.waiting = [], []

    def schedule(self):
        new, self.waiting = self.waiting, []
        numbers = {one.key: len(one.prompt) if one in new else 1 for one in (*self.running, *new)}
        self.running += new
        total = sum(numbers.values())
        return Space(total_num_scheduled_tokens=total, num_scheduled_tokens=numbers, preempted_req_ids=None)

class LLMEngine:
    @classmethod
    def from_engine_args(cls, arguments, usage_context):
        return cls(arguments)

    def __init__(self, given):
        with open(os.path.join(given["model"], "config.json")) as file:
            config = json.load(file)
        seen = {"given": given, "config": config, "environment": dict(os.environ)}
        with open(os.environ["SEEN"], "a") as file:
            file.write(json.dumps(seen) + "\\n")
        if config["model_type"] == "opt":
            raise RuntimeError("no kernel for this model")
        self.uncompiled = 3
        self.vllm_config = Space(
            model_config=Space(get_vocab_size=lambda: config["vocab_size"]),
            cache_config=Space(
                num_gpu_blocks=given.get("num_gpu_blocks_override", 20_000),
                block_size=given.get("block_size", 16),
                enable_prefix_caching=given.get("enable_prefix_caching", True),
            ),
            scheduler_config=Space(
                max_num_batched_tokens=given.get("max_num_batched_tokens", 8192),
                max_num_seqs=given.get("max_num_seqs", 1024),
                async_scheduling=given.get("async_scheduling", True),
            ),
            compilation_config=Space(cudagraph_capture_sizes=given.get("cudagraph_capture_sizes", [1, 2, 4])),
        )
        bias = Space(data=Space(zero_=lambda: open(os.environ["SEEN"] + ".zeroed", "w").close()))
        layers = [("model.layers.0.mlp.router.bias", bias), ("model.norm.weight", None)]
        if "num_experts" in config:
            layers.append(("model.layers.0.mlp.experts.w13_weight", None))
        runner = Space(model_memory_usage=16_000_000_000, model=Space(named_parameters=lambda: layers))
        worker = Space(peak_activation_memory=5, model_runner=runner)
        executor = Space(driver_worker=Space(worker=worker))
        core = Space(scheduler=Scheduler(), model_executor=executor)
        self.engine_core = Space(engine_core=core)

    def has_unfinished_requests(self):
        scheduler = self.engine_core.engine_core.scheduler
        return bool(scheduler.running or scheduler.waiting)

    def add_request(self, key, prompt, sampling):
        ids = prompt["prompt_token_ids"]
        if len(ids) == 666:
            raise ValueError("an unlucky prompt")
        if len(ids) == 333 and self.uncompiled:
            self.uncompiled -= 1
            knobs.runtime.jit_post_compile_hook(fn=None)
        if len(ids) == 60_000:
            time.sleep(60)
        one = Space(key=key, prompt=ids, left=sampling.max_tokens)
        self.engine_core.engine_core.scheduler.waiting.append(one)

    def step(self):
        scheduler = self.engine_core.engine_core.scheduler
        scheduler.schedule()
        time.sleep(0.001)
        found = []
        for one in scheduler.running:
            one.left -= 1
            output = Space(token_ids=[7])
            found.append(
                Space(request_id=one.key, outputs=[output], num_cached_tokens=0, finished=not one.left)
            )
        scheduler.running = [one for one in scheduler.running if one.left]
        return found

    def reset_prefix_cache(self):
        return True
"""
_FILES = {
    "torch/__init__.py": "from torch import cuda, distributed\n",
    "torch/cuda.py": "def is_available():\n    return False\n",
    "torch/distributed.py": "",
    "triton.py": (
        "from types import SimpleNamespace\n"
        "knobs = SimpleNamespace(runtime=SimpleNamespace(jit_post_compile_hook=None))\n"
    ),
    "vllm/__init__.py": (
        "from types import SimpleNamespace\n__version__ = '0.25.1'\n"
        "def SamplingParams(**given):\n    return SimpleNamespace(**given)\n"
    ),
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": "EngineArgs = dict\n",
    "vllm/inputs.py": "TokensPrompt = dict\n",
    "vllm/sampling_params.py": "class RequestOutputKind:\n    DELTA = 1\n",
    "vllm/usage/__init__.py": "",
    "vllm/usage/usage_lib.py": "class UsageContext:\n    OPENAI_API_SERVER = 1\n",
    "vllm/v1/__init__.py": "",
    "vllm/v1/engine/__init__.py": "",
    "vllm/v1/engine/llm_engine.py": _ENGINE,
    "fake_probe.py": (
        "def probe(job):\n    times = dict.fromkeys(('p10', 'p25', 'p50', 'p75', 'p90'), 6e-6)\n"
        "    return {'seconds': job.data['duration'], 'calls': {'launch': times}}\n"
    ),
}


def write_packages(folder: Path) -> None:
    """Write the packages, and ``fake_probe``, below a folder."""
    for name, text in _FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
