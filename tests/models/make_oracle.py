"""Write what Hugging Face says about every named size: parameters, order of hooks, FLOPs.

Run it in an environment of its own (torch for the CPU is enough, no weights are loaded):

    pip install torch transformers==5.23.0 pyyaml    # or transformers==4.46.3
    python tests/models/make_oracle.py

It writes ``oracle-5.json`` (or ``oracle-4.json``) beside itself:

* ``sizes``: for every name in ``sizes.yaml``, built on the meta device at full depth: the total (tied
  weights once), and the tensors outside the layers and in each of them. All layers must be alike.
* ``calls``: for a tiny model of each kind, the modules in the order of their forward pre-hooks in a prefill
  and a decode step with a cache and eager attention, and the matrix FLOPs that torch counts in that step.
  Names of a layer's modules are relative to the layer; the model's own and the layer's own are class names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent
SIZES = HERE.parents[1] / "simoffload" / "models" / "sizes.yaml"
CONFIGS = {
    "bloom": transformers.BloomConfig,
    "opt": transformers.OPTConfig,
    "llama": transformers.LlamaConfig,
    "mixtral": transformers.MixtralConfig,
}
SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 50}
TINY = {
    "bloom": ("bloom", SMALL),
    "opt": ("opt", {**SMALL, "ffn_dim": 64, "max_position_embeddings": 16}),
    "opt-post-norm": (
        "opt",
        {
            **SMALL,
            "ffn_dim": 64,
            "max_position_embeddings": 16,
            "word_embed_proj_dim": 16,
            "do_layer_norm_before": False,
        },
    ),
    "opt-plain": (
        "opt",
        {**SMALL, "ffn_dim": 64, "enable_bias": False, "layer_norm_elementwise_affine": False},
    ),
    "llama": ("llama", {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2}),
    "llama-tied": (
        "llama",
        {
            **SMALL,
            "intermediate_size": 48,
            "head_dim": 6,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "mixtral": (
        "mixtral",
        {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2, "num_local_experts": 4},
    ),
}
PROMPT = 5
LAYER = re.compile(r"^.*?\.(?:h|layers)\.(\d+)(?:\.|$)")


def place(name: str, class_name: str) -> tuple[int | None, str]:
    """The layer that a module is in, if any, and its name there."""
    match = LAYER.match(name)
    if match is None:
        return None, name or class_name
    return int(match[1]), name[match.end() :] or class_name


def own_tensors(module: torch.nn.Module, name: str) -> dict[str, int]:
    return {
        f"{name}.{key}": tensor.numel() for key, tensor in module._parameters.items() if tensor is not None
    }


def size_entry(model: torch.nn.Module) -> dict[str, object]:
    outside: dict[str, int] = {}
    layers: dict[int, dict[str, int]] = {}
    for full_name, module in model.named_modules():
        layer, name = place(full_name, type(module).__name__)
        tensors = outside if layer is None else layers.setdefault(layer, {})
        tensors.update(own_tensors(module, name))
    assert all(tensors == layers[0] for tensors in layers.values())
    total = sum(parameter.numel() for parameter in model.parameters())  # a shared tensor comes once
    return {"total": total, "outside": outside, "layer": layers[0]}


def call_entry(model: torch.nn.Module) -> dict[str, object]:
    seen: list[tuple[int | None, str]] = []
    for full_name, module in model.named_modules():
        where = place(full_name, type(module).__name__)
        module.register_forward_pre_hook(lambda *_, where=where: seen.append(where))
    with torch.no_grad():
        cache = model(torch.ones(1, PROMPT, dtype=torch.long), use_cache=True).past_key_values
        prefill, seen[:] = list(seen), []
        with FlopCounterMode(display=False) as counter:
            model(torch.ones(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    assert seen == prefill
    layers = {layer for layer, _ in seen if layer is not None}
    by_layer = [[name for where, name in seen if where == layer] for layer in sorted(layers)]
    assert all(names == by_layer[0] for names in by_layer)
    outside = [name for layer, name in seen if layer is None]
    first = next(index for index, (layer, _) in enumerate(seen) if layer is not None)
    return {
        "before": outside[:first],
        "layer": by_layer[0],
        "after": outside[first:],
        "decode_matrix_flops": counter.get_total_flops(),
    }


def build(family: str, config: Mapping[str, object], *, device: str) -> torch.nn.Module:
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(CONFIGS[family](**config), attn_implementation="eager")
    model.tie_weights()
    return model.eval()


def main() -> None:
    sizes = yaml.safe_load(SIZES.read_text(encoding="utf-8"))
    oracle: dict[str, Any] = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "prompt": PROMPT,
        "calls": {
            name: {"family": family, "config": config, **call_entry(build(family, config, device="cpu"))}
            for name, (family, config) in TINY.items()
        },
        "sizes": {},
    }
    for name, size in sizes.items():
        entry = size_entry(build(size["family"], size["config"], device="meta"))
        oracle["sizes"][name] = entry
        print(f"{name:16} {entry['total']:>20,}", flush=True)
    major = transformers.__version__.split(".")[0]
    (HERE / f"oracle-{major}.json").write_text(json.dumps(oracle, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
