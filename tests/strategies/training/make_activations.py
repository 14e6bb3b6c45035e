"""Measure what autograd keeps and allocates in a micro-step: rows of test_memory_activations.py.

Run it in an environment with transformers (a CPU build of PyTorch is enough; tensors have no content):

    python tests/strategies/training/make_activations.py

It prints, for each family, the highest sum of all storages alive per batch x length x hidden size, with two
and with six layers, the same of adapters on frozen weights, and the bytes of storages that one layer more
keeps for the backward pass. transformers 5.23.0 (5.24.0 with adapters) and PyTorch 2.13.0 made what is there.
Only eager attention: without content PyTorch does not find out that a mask is causal, and takes other fused
kernels than a real run.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import AutoConfig, AutoModelForCausalLM

HIDDEN, BATCH = 256, 2
GATED = {"intermediate_size": 640, "num_key_value_heads": 2}
WIDE = {**GATED, "head_dim": 64}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"intermediate_size": 640, "num_key_value_heads": 8}),
    "qwen2": ("qwen2", GATED),
    "qwen3": ("qwen3", WIDE),
    "mistral": ("mistral", GATED),
    "gemma2": ("gemma2", WIDE),
    "gemma3_text": ("gemma3_text", WIDE),
    "phi3": ("phi3", {"intermediate_size": 640, "num_key_value_heads": 8}),
    "gpt_neox": ("gpt_neox", {"intermediate_size": 1024}),
    "falcon": ("falcon", {}),
    "falcon-groups": ("falcon", {"num_kv_heads": 2, "new_decoder_architecture": True}),
}
STEPS = (("bfloat16", 512, True), ("bfloat16", 256, False), ("float32", 256, True))
"""Type, length, checkpointing."""


class Living(TorchDispatchMode):
    """Adds up the storages of all tensors that operations make, for as long as they live."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.known, self.now, self.peak = known, 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, torch.Tensor):
                self.add(tensor.untyped_storage())
        return result

    def add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.remove, key, size)

    def remove(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


class Adapted(torch.nn.Module):
    """A linear layer with an adapter of rank 4, as PEFT's (tuners/lora/layer.py, ``Linear.forward``), which
    does not take tensors without content."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        dtype = base.weight.dtype
        self.base = base.requires_grad_(False)
        self.lora_a = torch.nn.Linear(base.in_features, 4, bias=False, dtype=dtype)
        self.lora_b = torch.nn.Linear(4, base.out_features, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.base(x)
        return result + self.lora_b(self.lora_a(x)) * 2.0


def adapted(model: Any) -> Any:
    """Return the model, frozen, with adapters on all linear layers but the head."""
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        parent, _, own = name.rpartition(".")
        if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings():
            setattr(model.get_submodule(parent), own, Adapted(module))
    model.enable_input_require_grads()
    return model


def model_of(name: str, dtype: str, layers: int) -> Any:
    family, sizes = CASES[name]
    common = {"num_hidden_layers": layers, "hidden_size": HIDDEN, "num_attention_heads": 8, "vocab_size": 100}
    config = AutoConfig.for_model(family, **common, **sizes)
    config.pad_token_id, config.use_cache = None, False
    kind = getattr(torch, dtype)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=kind).train()


def storages(model: torch.nn.Module) -> set[int]:
    return {parameter.untyped_storage()._cdata for parameter in model.parameters()}


def peak(
    name: str, dtype: str, length: int, layers: int, *, checkpointing: bool, adapters: bool = False
) -> float:
    with FakeTensorMode():
        model = model_of(name, dtype, layers)
        if adapters:
            model = adapted(model)
        if checkpointing:
            model.gradient_checkpointing_enable()
        for parameter in filter(lambda one: one.requires_grad, model.parameters()):
            parameter.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
        tokens = torch.ones(BATCH, length, dtype=torch.long)
        with Living(storages(model)) as living:
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    return living.peak / (BATCH * length * HIDDEN)


def kept(name: str, dtype: str, layers: int) -> int:
    found: dict[int, int] = {}
    alive: list[torch.Tensor] = []
    with FakeTensorMode():
        model = model_of(name, dtype, layers)
        own = storages(model)

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            alive.append(tensor)
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                found[storage._cdata] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(input_ids=torch.ones(BATCH, 128, dtype=torch.long), use_cache=False)
    return sum(found.values())


def main() -> None:
    for name in CASES:
        for dtype, length, checkpointing in STEPS:
            few, more = (peak(name, dtype, length, layers, checkpointing=checkpointing) for layers in (2, 6))
            print(f'("{name}", "eager", "{dtype}", {length}, 100, {checkpointing}, {few:.2f}, {more:.2f}),')
        for checkpointing in (True, False):
            with_adapters = partial(peak, name, "bfloat16", 64, checkpointing=checkpointing, adapters=True)
            few, more = with_adapters(2), with_adapters(6)
            print(f'("{name}", {checkpointing}, {few:.2f}, {more:.2f}),')
        for dtype in ("bfloat16", "float32"):
            print(f'("{name}", "{dtype}", {kept(name, dtype, 3) - kept(name, dtype, 2)}),')


if __name__ == "__main__":
    main()
