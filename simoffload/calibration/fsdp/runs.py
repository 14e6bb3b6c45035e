"""The measured steps of training under FSDP, and which of them are held out.

The split was fixed before anything was measured. Runs of the part "fit" were available while the model was
developed; those of "holdout" are compared once, at the end. The tiny models measure the host thread, because
nothing else takes time in their steps.
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
    """One run: a model, its work and the settings of FSDP."""

    part: Literal["fit", "holdout", "tiny"]
    model: str | dict[str, Any]
    batch: int
    length: int
    settings: dict[str, Any]
    """The settings, as in a scenario's ``strategy``."""
    work: dict[str, Any]
    """Further keys of the work, as in a scenario's ``workload``."""
    seconds: float
    """[s] Estimated time including the model's construction; a run starts only if this much is left."""
    fsdp: bool = True
    """False for the model without FSDP, whose host thread is the baseline."""

    def job(self, ranks: int) -> dict[str, Any]:
        """Return the run as plain values for the child process."""
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
        """Return a name with everything by which two runs may differ."""
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
"""Parts alternate and the most important runs come first, so that a time limit cuts both parts."""

_TINY: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 512, "num_key_value_heads": 2},
    "opt": {"ffn_dim": 1024},
}
_TINY_LAYERS = (24, 8)


def fsdp_runs(ranks: int) -> tuple[FsdpRun, ...]:
    """Return the runs on a number of ranks, in their order."""
    return {1: _ONE_RANK, 2: _TWO_RANKS}.get(ranks, ())


def tiny_runs(ranks: int) -> Iterator[FsdpRun]:
    """Return runs of small models in which each setting of FSDP is varied alone."""
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
