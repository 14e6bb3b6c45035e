"""Runs of small models under ZeRO-3, whose time is that of the host thread alone."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from simoffload.units import plural
from simoffload_calibrate.runs import CalibrationRun, request

_LAYERS, _HIDDEN, _HEADS, _VOCABULARY, _POSITIONS = 8, 256, 4, 1024, 512
_EVERYTHING = 10**9
_BIASES = 1000
"""[elements] A persistence threshold below which only biases and norms stay on the GPU."""
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
_TRAINING = {"kind": "training", "batch_size": 2, "sequence_length": 16, "steps": 6}
_TRAINED_LAYERS = 24
"""The number of layers of models with a few billion parameters. A layer's backward pass keeps the thread
busy longer in a model of 24 than of 8 layers (9.3 against 8.0 ms on an H200's host;
docs/measurements/training.md)."""
_NOTHING: tuple[str, ...] = ()
_STATES = ("offload_optimizer",)
_BOTH = ("offload_param", "offload_optimizer")
_TRAINED = (
    ("opt", _BOTH, "prefetch of one", True, 1),
    ("opt", _BOTH, "no prefetch", False, 1),
    ("opt", _STATES, "prefetch of one", True, 3),
    ("bloom", _BOTH, "persistent", True, 3),
    ("bloom", _STATES, "no prefetch", True, 1),
    ("bloom", _STATES, "persistent", False, 1),
    ("llama", _BOTH, "prefetch of one", True, 1),
    ("llama", _STATES, "prefetch of one", True, 1),
    ("llama", _STATES, "persistent", False, 3),
    ("opt", _NOTHING, "persistent", True, 1),
    ("bloom", _NOTHING, "prefetch of one", False, 1),
    ("llama", _NOTHING, "no prefetch", True, 3),
)
"""Family, parts offloaded to the CPU, prefetch, gradient checkpointing, and micro-steps per step.

Every value occurs with several values of the others. Runs with nothing offloaded come last, because their
optimizer may have to be compiled for the GPU first."""
_SUB_GROUP = 10**6
"""[elements] Size of sub-groups and of the buckets of gradients in runs with several micro-steps, so that
steps occur with one sub-group and bucket and with several."""
_ONE_BUCKET = 5 * 10**7
"""[elements] that hold all gradients of a small model; DeepSpeed's default takes 1 GB of the GPU."""
_HELD_BACK = ("opt", _BOTH, "persistent", False, 2)
"""A combination of training that the fit does not use."""


def small_cases(ranks: int) -> tuple[CalibrationRun, ...]:
    """Return runs of each family with all persistent, with and without prefetch; Llama also without
    offload."""
    cases = [
        _case(f"tiny {family} {name} r{ranks}", model, ranks, "cpu", settings)
        for family, model in _MODELS.items()
        for name, settings in _SETTINGS.items()
    ]
    in_hbm = _SETTINGS["prefetch of one"] | {"stage3_param_persistence_threshold": _BIASES}
    return (*cases, _case(f"tiny llama not offloaded r{ranks}", _MODELS["llama"], ranks, "none", in_hbm))


def small_training_cases(ranks: int, *, deep: bool = True) -> tuple[CalibrationRun, ...]:
    """Return training runs of each family with various offload, checkpointing and gradient accumulation.

    ``deep`` gives them as many layers as real models; else they have as few as for inference and take a third
    of the time.
    """
    layers = _TRAINED_LAYERS if deep else _LAYERS
    return tuple(_training_case(ranks, layers, *choice) for choice in _TRAINED)


def held_back_cases(ranks: int) -> tuple[CalibrationRun, ...]:
    """Return runs whose decode steps test the fit and are not used by it: one without offload, one deeper."""
    in_hbm = _SETTINGS["prefetch of one"] | {"stage3_param_persistence_threshold": _BIASES}
    deep = _MODELS["llama"] | {"num_hidden_layers": _TRAINED_LAYERS}
    return (
        _case(f"tiny bloom not offloaded r{ranks}", _MODELS["bloom"], ranks, "none", in_hbm),
        _case(
            f"tiny llama of {_TRAINED_LAYERS} layers r{ranks}", deep, ranks, "cpu", _SETTINGS["no prefetch"]
        ),
    )


def held_back_training_cases(ranks: int, *, deep: bool = True) -> tuple[CalibrationRun, ...]:
    """Return a run whose training steps test the fit and are not used by it."""
    return (_training_case(ranks, _TRAINED_LAYERS if deep else _LAYERS, *_HELD_BACK),)


_WIDER = 3
"""Factor of the width of models without DeepSpeed. Their matrices then have more than 1 MB, so that PyTorch
allocates and releases memory for each, as in large models."""
_KEPT: dict[str, Any] = {"device_map": "cuda"}
_OFFLOADED: dict[str, Any] = {"device_map": "cpu", "pin_memory": True}
_EAGER = ("opt", "llama")
"""The families of models without DeepSpeed."""
_DIVIDED = ("llama",)
"""Families that transformers divides among GPUs (tensor parallelism)."""


def eager_cases(ranks: int) -> tuple[CalibrationRun, ...]:
    """Return runs without DeepSpeed: on one rank on the GPU and offloaded by Accelerate, on several divided
    among the GPUs."""
    if ranks == 1:
        return tuple(
            _eager_case(f"tiny {family} {name}", family, {"kind": "accelerate", **settings})
            for family in _EAGER
            for name, settings in (("not offloaded", _KEPT), ("under Accelerate", _OFFLOADED))
        )
    divided = {"kind": "transformers", "tensor_parallel_size": ranks}
    return tuple(
        _eager_case(f"tiny {family} divided r{ranks}", family, divided, ranks=ranks) for family in _DIVIDED
    )


def _eager_case(name: str, family: str, strategy: dict[str, Any], *, ranks: int = 1) -> CalibrationRun:
    """Return a case with a wider model, whose heads of keys and values ``ranks`` can divide equally."""
    wide = {"hidden_size", "intermediate_size", "ffn_dim", "n_head", "num_attention_heads"}
    model = dict(_MODELS[family])
    heads = model.get("num_key_value_heads", 1)
    wider = Fraction(-(-_WIDER * heads // ranks) * ranks, heads)
    for key in wide & model.keys() | {"num_key_value_heads"} & model.keys():
        model[key] = int(wider * model[key])
    return request({"name": name, "model": model, "workload": _WORK, "strategy": strategy})


def _training_case(
    ranks: int,
    layers: int,
    family: str,
    offloaded: tuple[str, ...],
    settings: str,
    checkpointing: bool,
    micro_steps: int,
) -> CalibrationRun:
    work = _TRAINING | {
        "gradient_accumulation_steps": micro_steps,
        "gradient_checkpointing": checkpointing,
    }
    where = {_NOTHING: "nothing", _STATES: "optimizer", _BOTH: "all"}[offloaded]
    kept = "" if checkpointing else ", activations kept"
    steps = plural(micro_steps, "micro-step")
    name = f"tiny {family} trained, {where} offloaded, {settings}{kept}, {steps} r{ranks}"
    zero: dict[str, Any] = {"stage": 3, **_SETTINGS[settings]}
    zero["reduce_bucket_size"] = _ONE_BUCKET
    if micro_steps > 1:
        zero |= {"sub_group_size": _SUB_GROUP, "reduce_bucket_size": _SUB_GROUP}
    zero |= {part: {"device": "cpu", "pin_memory": True} for part in offloaded}
    strategy = {"ranks": ranks, "ds_config": {"zero_optimization": zero}}
    depth = "n_layer" if family == "bloom" else "num_hidden_layers"
    model = _MODELS[family] | {"dtype": "bfloat16", depth: layers}
    return request({"name": name, "model": model, "workload": work, "strategy": strategy})


def _case(
    name: str, model: dict[str, Any], ranks: int, device: str, settings: dict[str, int]
) -> CalibrationRun:
    zero: dict[str, Any] = {"stage": 3, **settings}
    if device != "none":
        zero["offload_param"] = {"device": device, "pin_memory": True}
    strategy = {"ranks": ranks, "ds_config": {"zero_optimization": zero}}
    return request({"name": name, "model": model, "workload": _WORK, "strategy": strategy})
