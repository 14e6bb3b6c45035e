"""Buffers in which ggml keeps what a graph computes, on the GPU and in host memory.

Reference: ggml/src/ggml-alloc.c of llama.cpp@0c1e5709; compared with what llama.cpp reports in
docs/measurements/llama-cpp.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from simoffload.models import ModelShape, Module
from simoffload.strategies.hooks.cpu_placement import CpuPlacement

_SINGLE = 4
"""Size [B] of an element, in single precision."""


@dataclass(frozen=True)
class GraphBuffers:
    """GraphBuffers are the sizes of the buffers of a graph of ``tokens`` of ``batch`` sequences."""

    model: ModelShape
    placement: CpuPlacement
    tokens: int
    batch: int
    cells: Callable[[int | None], int]
    """Function that returns the tokens of a sequence that the cache of a layer with a window has room for."""
    brings: bool
    """Whether weights on the CPU are brought to the first GPU for so many tokens."""
    copies: int = 1
    """Copies of the inputs of a GPU, of which all are kept if there are several."""

    @cached_property
    def _masks(self) -> list[int]:
        """Sizes of the masks of attention, in 16 bits [B]."""
        windows = {one.window for one in self.model.distinct_modules if one.kind == "attention"}
        row = self.tokens * self.batch * 2
        return [row * self.cells(window) for window in windows]

    @property
    def on_host(self) -> int:
        """Size of the buffers of a graph in host memory [B]: embeddings, their copy, and masks."""
        return 2 * self.tokens * self.model.hidden_size * _SINGLE + sum(self._masks)

    def on_gpu(self, gpu: int) -> int:
        """Return the size of the buffers of a graph on a GPU [B]: the largest one of its moments.

        At the end these are logits and hidden states, above which the results of experts of the last layer
        leave a gap if the GPU computes them (``ggml_gallocr``); without the head the results of the widest
        product (an estimate); and where a tensor is brought to the GPU, that tensor with what is read and
        written.
        """
        model, row, last = self.model, self.tokens * _SINGLE, self.placement.gpu(-1)
        hidden, logits = model.hidden_size * row, model.vocab_size * row
        sizes = [0 if self.placement.head or gpu != last else logits + hidden + self._gap]
        if gpu != last:
            layers = (one for layer, _ in model.kinds for one in layer)
            wide = max(one.out_features for one in layers if one.kind == "linear" and one.share == 1)
            sizes += [2 * wide * row + 2 * hidden]
        if self.copies > 1:
            sizes = [one + self.copies * (hidden + sum(self._masks)) for one in sizes]
        if not self.brings or gpu:
            return max(sizes)
        sizes += [logits + hidden + size for _, size in self._brought(-1, model.modules_after)]
        mask = max(self._masks)
        kinds = {
            (id(layer), self.placement.decides(number)): number for number, layer in enumerate(model.layers)
        }
        for number in kinds.values():
            sizes += [
                size + mask + 3 * hidden + chosen * (wide * row + hidden)
                for (chosen, wide), size in self._brought(number, model.layers[number])
            ]
        return max(sizes)

    @property
    def _gap(self) -> int:
        """Size of what experts of the last layer leave below the logits [B]."""
        model = self.model
        hidden, chosen = model.hidden_size * self.tokens * _SINGLE, model.experts_per_token
        last = [one for one in model.layers[-1] if one.parallel == "experts" and one.parameters]
        if not last or self.placement.holds(model.num_hidden_layers - 1, last[0]):
            return 0
        wide = self._widths(last[0])[1] * self.tokens * _SINGLE
        return hidden + max(2 * chosen * wide, (chosen + 1) * hidden)

    def _widths(self, module: Module) -> tuple[int, int]:
        """Return how many experts of a token a module has, 1 if none, and the width within its network."""
        model = self.model
        if module.parallel == "experts":
            numel = sum(one.numel for one in module.parameters)  # of gate, up and down
            return model.experts_per_token, numel // (3 * model.num_experts * model.hidden_size)
        return 1, max(module.in_features, module.out_features)

    def _brought(self, layer: int, modules: Sequence[Module]) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield the widths and the size [B] of each tensor that is brought to the GPU for many tokens; gate
        and up are two."""
        for one in modules:
            if one.parameters and self.placement.holds(layer, one):
                for part in one.parameters:
                    size = part.stored_bytes(self.model.dtype_bytes)
                    yield self._widths(one), size // (2 if "gate_up" in part.name else 1)
