"""Record in which order PyTorch's FSDP brings units to a device, frees and reduces them.

Run it in an environment with PyTorch and transformers (CPU builds are enough):

    python tests/strategies/training/make_fsdp_traces.py

It writes a file per case into ``data/``: a line per event of the third step on rank 0.
``limit`` is the rate limiter's wait, ``free`` a reshard that frees memory, ``compute`` the first call of a
layer's attention in a pass. The cases with adapters need PEFT, too (0.21.2, with transformers 5.24.0, made
them). PyTorch 2.13.0 and transformers 5.23.0 made the others.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
LAYERS = 4


class Case(NamedTuple):
    """Knobs of a run."""

    ranks: int = 2
    prefetch: str = "pre"
    reshard: bool = True
    limit: bool = True
    micro_steps: int = 1
    adapters: bool = False
    """Whether adapters of two linear layers are trained, under PEFT's policy of wrapping."""


CASES = {
    "fsdp": Case(),
    "fsdp-post": Case(prefetch="post"),
    "fsdp-none": Case(prefetch="none"),
    "fsdp-unlimited": Case(limit=False),
    "fsdp-accumulation": Case(micro_steps=3),
    "fsdp-grad-op": Case(reshard=False),
    "fsdp-grad-op-accumulation": Case(reshard=False, micro_steps=3, prefetch="post"),
    "fsdp-one-rank": Case(ranks=1),
    "fsdp-adapters": Case(adapters=True),
    "fsdp-adapters-post": Case(adapters=True, prefetch="post"),
    "fsdp-adapters-accumulation": Case(adapters=True, micro_steps=3),
}


TARGETS = ("q_proj", "down_proj")


def _short(name: str) -> str:
    """Return the number of a layer, and of an adapter's matrix in it its name."""
    number, _, inside = name.rpartition("layers.")[2].partition(".")
    *_, target, matrix = ["", "", *inside.removesuffix(".default").split(".")]
    return f"{number}.{target}.{matrix}" if inside else number or "root"


def record(case: Case) -> list[str]:
    """Events of the third step; only once in a process."""
    import torch
    import torch.distributed.fsdp._runtime_utils as runtime
    import transformers
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp._flat_param import FlatParamHandle
    from torch.distributed.fsdp._limiter_utils import _FreeEventQueue
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    torch.distributed.init_process_group("gloo")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4, vocab_size=128
    )
    inner = transformers.LlamaForCausalLM(config)
    policy: Any = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
    layers, whole = inner.model.layers, inner
    if case.adapters:
        import peft

        whole = peft.get_peft_model(inner, peft.LoraConfig(r=4, target_modules=list(TARGETS)))
        policy = peft.utils.other.fsdp_auto_wrap_policy(whole)
        whole.enable_input_require_grads()
    inner.gradient_checkpointing_enable()
    model = FullyShardedDataParallel(
        whole,
        auto_wrap_policy=policy,
        sharding_strategy=ShardingStrategy.FULL_SHARD if case.reshard else ShardingStrategy.SHARD_GRAD_OP,
        backward_prefetch={"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST}.get(
            case.prefetch
        ),
        limit_all_gathers=case.limit,
        device_id=torch.device("cpu"),
    )
    units = {
        module._handle: _short(name)
        for name, module in ((n.replace("._fsdp_wrapped_module", ""), m) for n, m in model.named_modules())
        if isinstance(module, FullyShardedDataParallel)
    }
    units[model._handle] = "root"
    events: list[str] = []

    def watch(owner: Any, method: str, write: Any) -> None:
        original = getattr(owner, method)

        def outer(*args: Any, **more: Any) -> Any:
            result = original(*args, **more)
            if line := write(result, *args, **more):
                events.append(line)
            return result

        setattr(owner, method, outer)

    watch(FlatParamHandle, "pre_unshard", lambda _, unit: f"unshard {units[unit]}")
    watch(FlatParamHandle, "_all_gather_flat_param", lambda _, unit, __: f"gather {units[unit]}")
    watch(FlatParamHandle, "reshard", lambda _, unit, free: f"free {units[unit]}" if free else "")
    watch(runtime, "_reduce_grad", lambda _, __, unit: f"reduce {units[unit]}")
    watch(runtime, "_reduce_grad_no_shard", lambda _, __, unit: f"reduce {units[unit]}")
    watch(_FreeEventQueue, "dequeue_if_needed", lambda event, _: "limit" if event is not None else "")
    for number, layer in enumerate(layers):
        layer._fsdp_wrapped_module.self_attn.register_forward_pre_hook(
            lambda *_, number=number: events.append(f"compute {number}")
        )
    tokens = torch.randint(0, config.vocab_size, (1, 16))
    for _ in range(3):
        events.clear()
        for index in range(case.micro_steps):
            with contextlib.nullcontext() if index == case.micro_steps - 1 else model.no_sync():
                loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
                events.append("backward")
                loss.backward()
                events.append("end")
    return events


def main() -> None:
    """Record every case in processes of its own."""
    for name, case in CASES.items():
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={case.ranks}"]
        done = subprocess.run(
            [*command, "--master-port=29577", __file__, name],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{name}: {done.stderr[-2000:]}")
            continue
        found = next(line for line in done.stdout.splitlines() if line.startswith("["))
        (HERE / "data" / f"{name}.txt").write_text("\n".join(json.loads(found)) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        lines = record(CASES[sys.argv[1]])
        if os.environ["RANK"] == "0":
            print(f"\n{json.dumps(lines)}", flush=True)
    else:
        main()
