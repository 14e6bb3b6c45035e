"""Small models under ZeRO-3: runs in which nothing but the host thread takes time."""

from __future__ import annotations

from typing import Any

from simoffload.calibration.runs import Case, request

__all__ = ["small_cases"]

_LAYERS, _HIDDEN, _HEADS, _VOCABULARY, _POSITIONS = 8, 256, 4, 1024, 512
_EVERYTHING = 10**9
_BIASES = 1000
"""[elements] persistence threshold below which only biases and norms stay on the GPU."""
_MODELS: dict[str, dict[str, Any]] = {
    "opt": {
        "family": "opt",
        "hidden_size": _HIDDEN,
        "ffn_dim": 4 * _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": _POSITIONS,
    },
    "bloom": {
        "family": "bloom",
        "hidden_size": _HIDDEN,
        "n_layer": _LAYERS,
        "n_head": _HEADS,
        "vocab_size": _VOCABULARY,
    },
    "llama": {
        "family": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS // 2,
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": _POSITIONS,
    },
}
_SETTINGS: dict[str, dict[str, int]] = {
    "persistent": {"stage3_param_persistence_threshold": _EVERYTHING},
    "prefetch of one": {"stage3_prefetch_bucket_size": 1, "stage3_param_persistence_threshold": 0},
    "no prefetch": {"stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": _BIASES},
}
_WORK = {"kind": "inference", "batch_size": 4, "prompt_length": 8, "output_length": 14}


def small_cases(ranks: int) -> tuple[Case, ...]:
    """Every family with all persistent, with prefetch and without; Llama also with nothing offloaded."""
    cases = [
        _case(f"tiny {family} {name} r{ranks}", model, ranks, "cpu", knobs)
        for family, model in _MODELS.items()
        for name, knobs in _SETTINGS.items()
    ]
    in_hbm = _SETTINGS["prefetch of one"] | {"stage3_param_persistence_threshold": _BIASES}
    return (*cases, _case(f"tiny llama not offloaded r{ranks}", _MODELS["llama"], ranks, "none", in_hbm))


def _case(name: str, model: dict[str, Any], ranks: int, device: str, knobs: dict[str, int]) -> Case:
    zero: dict[str, Any] = {"stage": 3, **knobs}
    if device != "none":
        zero["offload_param"] = {"device": device, "pin_memory": True}
    strategy = {"ranks": ranks, "ds_config": {"zero_optimization": zero}}
    return request({"name": name, "model": model, "workload": _WORK, "strategy": strategy})
