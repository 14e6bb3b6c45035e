"""Which steps of training under FSDP are measured, and which of them stay out of view.

The split was written down before anything was measured. Runs of the part "fit" may be looked at while
predictions are made; those of "holdout" are compared with once, at the end. The tiny models measure the
host thread: in their steps nothing else takes time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

__all__ = ["FsdpRun", "fsdp_runs", "tiny_runs"]

_VOCABULARY = 32_000
_OPT_4 = {"name": "opt-6.7b", "num_hidden_layers": 4}
_LLAMA_6 = {"name": "llama-3-8b", "num_hidden_layers": 6, "vocab_size": _VOCABULARY}
_OFFLOAD = {"cpu_offload": True}
_FEW_THREADS = 4


class FsdpRun(NamedTuple):
    """One run: which model does what work under which knobs of FSDP."""

    part: Literal["fit", "holdout", "tiny"]
    model: str | dict[str, Any]
    batch: int
    length: int
    settings: dict[str, Any]
    """As in a scenario's ``strategy``."""
    work: dict[str, Any]
    """As in a scenario's ``workload``, beyond batch and length."""
    seconds: float
    """[s] that it takes about, the model's construction included: a run is begun only if so much is left."""
    fsdp: bool = True
    """False: the model without FSDP, whose host thread FSDP's is compared with."""

    def job(self, ranks: int) -> dict[str, Any]:
        """As plain values, for a process that has no more than these."""
        model = {"name": self.model} if isinstance(self.model, str) else dict(self.model)
        return {
            "name": self.name(ranks),
            "part": self.part,
            "model": {**model, "dtype": "bfloat16"},
            "workload": {
                "kind": "training",
                "batch_size": self.batch,
                "sequence_length": self.length,
                **self.work,
            },
            "strategy": {"kind": "fsdp", "ranks": ranks, **self.settings} if self.fsdp else None,
            "seconds": self.seconds,
        }

    def name(self, ranks: int) -> str:
        """Says everything that two cases may differ by."""
        model = self.model
        if isinstance(model, dict):
            changes = ", ".join(f"{key} {value}" for key, value in model.items() if key not in _SIZES)
            model = f"tiny {changes}" if self.part == "tiny" else ", ".join(map(str, model.values()))
        text = ", ".join(f"{key} {value}" for key, value in (*self.settings.items(), *self.work.items()))
        kind = "fsdp" if self.fsdp else "plain"
        return f"{model}, {self.batch} x {self.length}, {kind} r{ranks}" + (f", {text}" if text else "")


_SIZES = frozenset({"hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings"})

_TWO_RANKS = (
    FsdpRun("fit", "opt-1.3b", 2, 512, _OFFLOAD, {}, 35),
    FsdpRun("holdout", _LLAMA_6, 4, 2048, _OFFLOAD, {}, 45),
    FsdpRun("fit", "llama-3.2-3b", 4, 2048, {}, {}, 30),
    FsdpRun("holdout", "opt-6.7b", 4, 1024, {}, {}, 40),
    FsdpRun("fit", "opt-1.3b", 8, 1024, {**_OFFLOAD, "backward_prefetch": "none"}, {}, 35),
    FsdpRun("holdout", _OPT_4, 1, 512, {**_OFFLOAD, "backward_prefetch": "post"}, {}, 35),
    FsdpRun("fit", "opt-1.3b", 1, 256, {}, {}, 15),
    FsdpRun("holdout", "llama-3.2-1b", 2, 1024, _OFFLOAD, {"gradient_accumulation_steps": 4}, 45),
    FsdpRun("holdout", "opt-1.3b", 4, 1024, {**_OFFLOAD, "mixed_precision": False}, {}, 35),
    FsdpRun("holdout", "llama-3-8b", 2, 2048, {"reshard_after_forward": False}, {}, 45),
    FsdpRun("fit", "llama-3.2-1b", 4, 1024, {**_OFFLOAD, "cpu_threads": _FEW_THREADS}, {}, 45),
    FsdpRun(
        "holdout",
        "llama-3.2-3b",
        2,
        1024,
        {"limit_all_gathers": False},
        {"gradient_checkpointing": False},
        30,
    ),
    FsdpRun("holdout", "llama-3.2-3b", 8, 2048, _OFFLOAD, {}, 80),
)
_ONE_RANK = (
    FsdpRun("fit", "opt-1.3b", 2, 512, _OFFLOAD, {}, 40),
    FsdpRun("holdout", _LLAMA_6, 4, 2048, _OFFLOAD, {}, 50),
    FsdpRun("fit", "llama-3.2-1b", 8, 1024, {}, {}, 20),
    FsdpRun("holdout", "opt-2.7b", 4, 1024, {}, {}, 25),
    FsdpRun("fit", "opt-1.3b", 8, 1024, {**_OFFLOAD, "backward_prefetch": "none"}, {}, 40),
    FsdpRun("holdout", _OPT_4, 1, 512, {**_OFFLOAD, "backward_prefetch": "post"}, {}, 35),
    FsdpRun("fit", "opt-1.3b", 1, 256, {}, {}, 15),
    FsdpRun("holdout", "qwen2.5-1.5b", 2, 2048, {}, {"gradient_checkpointing": False}, 20),
    FsdpRun("holdout", "opt-1.3b", 4, 1024, {**_OFFLOAD, "mixed_precision": False}, {}, 35),
    FsdpRun("fit", "llama-3.2-1b", 4, 1024, {**_OFFLOAD, "cpu_threads": _FEW_THREADS}, {}, 60),
    FsdpRun("holdout", "llama-3.2-1b", 2, 1024, _OFFLOAD, {"gradient_accumulation_steps": 4}, 50),
)
"""Parts alternate, and what matters most comes first, so that a time limit takes from both."""

_TINY: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 512, "num_key_value_heads": 2},
    "opt": {"ffn_dim": 1024},
}
_TINY_LAYERS = (24, 8)


def fsdp_runs(ranks: int) -> tuple[FsdpRun, ...]:
    """The runs on so many ranks, in the order in which they are carried out."""
    return {1: _ONE_RANK, 2: _TWO_RANKS}.get(ranks, ())


def tiny_runs(ranks: int) -> Iterator[FsdpRun]:
    """Steps of small models, so that each of FSDP's knobs is seen by itself."""
    kept = {"gradient_checkpointing": False}
    for family in _TINY:
        for layers in _TINY_LAYERS:
            yield _tiny(family, layers, {}, {}, fsdp=False)
            yield _tiny(family, layers, {}, kept, fsdp=False)
        yield _tiny(family, _TINY_LAYERS[0], {}, {})
        yield _tiny(family, _TINY_LAYERS[0], _OFFLOAD, {})
    first = "llama", _TINY_LAYERS[0]
    yield _tiny("llama", _TINY_LAYERS[1], _OFFLOAD, {})
    yield _tiny(*first, {**_OFFLOAD, "mixed_precision": False}, {})
    yield _tiny(*first, {"mixed_precision": False}, {})
    yield _tiny(*first, {}, kept)
    yield _tiny(*first, {**_OFFLOAD, "backward_prefetch": "none"}, {})
    yield _tiny(*first, {"limit_all_gathers": False}, {})
    yield _tiny(*first, _OFFLOAD, {"gradient_accumulation_steps": 3})
    if ranks > 1:
        yield _tiny(*first, {"reshard_after_forward": False}, {})
        yield _tiny(*first, {"backward_prefetch": "post"}, {})


def _tiny(
    family: str, layers: int, settings: dict[str, Any], work: dict[str, Any], *, fsdp: bool = True
) -> FsdpRun:
    model = {
        "family": family,
        "num_hidden_layers": layers,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "vocab_size": 1024,
        "max_position_embeddings": 512,
        **_TINY[family],
    }
    return FsdpRun("tiny", model, 2, 16, settings, work, 6, fsdp)
