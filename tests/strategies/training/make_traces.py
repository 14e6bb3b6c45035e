"""Record in which order real DeepSpeed fetches, computes and reduces in a micro-step of training.

Run it in an environment with DeepSpeed and transformers (CPU builds are enough):

    python tests/strategies/training/make_traces.py

It writes a file per case into ``data/``: a line per event of the third micro-step. ``fetch`` and ``release``
are the coordinator's calls in hooks of forward (recomputation included), ``fetch-`` and ``release-`` those in
hooks of backward; ``grad`` says that a gradient is complete, ``bucket`` which gradients are partitioned
together, and ``backward`` divides the passes. DeepSpeed 0.19.8, transformers 5.23.0 and PyTorch 2.13.0 made
what is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BUCKET = 20_000
"""``reduce_bucket_size`` [elements]; a layer holds two to five times as many."""
_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
_LLAMA = {**_SMALL, "intermediate_size": 128, "num_key_value_heads": 2, "max_position_embeddings": 64}
_OPT = {**_SMALL, "ffn_dim": 256, "word_embed_proj_dim": 64, "max_position_embeddings": 64}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", **_LLAMA},
    "llama-tied": {
        "family": "llama",
        **_LLAMA,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "opt": {"family": "opt", **_OPT},
    "opt-post-norm": {"family": "opt", **_OPT, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "opt-plain": {"family": "opt", **_OPT, "enable_bias": False, "layer_norm_elementwise_affine": False},
    "bloom": {"family": "bloom", **_SMALL},
    "mixtral": {"family": "mixtral", **_LLAMA, "num_local_experts": 4},
}
CHECKPOINTING = ("whole", "checkpointed", "reentrant")


def ds_config() -> dict[str, Any]:
    """No prefetch and no reuse: every hook's own work is seen."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu"},
            "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": 1,
            "stage3_max_reuse_distance": 0,
            "reduce_bucket_size": BUCKET,
        },
        "steps_per_print": 10**9,
    }


def record(name: str, checkpointing: str) -> list[str]:
    """Events of the third micro-step of a case; only once in a process."""
    import deepspeed
    import torch
    import torch._dynamo
    import transformers
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

    written = dict(MODELS[name])
    config = transformers.AutoConfig.for_model(written.pop("family"), **written)
    deepspeed.init_distributed("gloo", verbose=False)
    transformers.PreTrainedModel.init_weights = lambda model: model.tie_weights()
    with deepspeed.zero.Init(config_dict_or_path=ds_config(), dtype=torch.bfloat16):
        model = transformers.AutoModelForCausalLM.from_config(config)
    if checkpointing != "whole":
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
    model.plan()
    engine, *_ = deepspeed.initialize(model=model, config=ds_config(), model_parameters=model.parameters())
    modules = {module: called or type(module).__name__ for called, module in model.named_modules()}
    parameters = {parameter: called for called, parameter in model.named_parameters()}
    events: list[str] = []

    def watch(owner: type, method: str, write: Any) -> None:
        inner = getattr(owner, method)

        def outer(self: Any, *args: Any, **more: Any) -> Any:
            events.append(write(*args, **more))
            return inner(self, *args, **more)

        setattr(owner, method, outer)

    coordinator, reducer = PartitionedParameterCoordinator, type(engine.optimizer)
    watch(
        coordinator,
        "fetch_sub_module",
        lambda module, forward: f"fetch{'' if forward else '-'} {modules[module]}",
    )
    watch(
        coordinator,
        "release_sub_module",
        lambda module, forward=False: f"release{'' if forward else '-'} {modules[module]}",
    )
    watch(
        reducer,
        "reduce_independent_p_g_buckets_and_remove_grads",
        lambda parameter: f"grad {parameters[parameter]}",
    )
    watch(
        reducer, "partition_grads", lambda bucket, _: f"bucket {' '.join(parameters[one] for one in bucket)}"
    )
    tokens = torch.randint(0, config.vocab_size, (1, 16))
    for _ in range(3):
        events.clear()
        loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
        events.append("backward")
        engine.backward(loss)
        step = len(events)
        engine.step()
    return events[:step]


def main() -> None:
    """Record every case in a process of its own."""
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29533",
    }
    for name in MODELS:
        for checkpointing in CHECKPOINTING:
            done = subprocess.run(
                [sys.executable, __file__, name, checkpointing],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                print(f"{name} {checkpointing}: {done.stderr.splitlines()[-1]}")
                continue
            events = json.loads(done.stdout.splitlines()[-1])
            (HERE / "data" / f"{name}-{checkpointing}.txt").write_text("\n".join(events) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(f"\n{json.dumps(record(*sys.argv[1:]))}")
    else:
        main()
