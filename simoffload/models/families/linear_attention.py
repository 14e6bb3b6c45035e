"""Linear attention: layers that keep a state of fixed size instead of keys and values.

Modules and tensors of the gated DeltaNet (Yang et al., arXiv 2412.06464) as in
transformers/models/qwen3_next/modeling_qwen3_next.py at 5.23.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simoffload.models.modules import SINGLE, Module, activation, container, linear, rms_norm
from simoffload.models.stored_tensors import Parameter

LINEAR, FULL = "linear_attention", "full_attention"
TIME_IS_A_BOUND = (
    "the time of linear attention is a lower bound: its projections are counted, and that queries, keys and "
    "values are read once and results written, but not the update of its state, for which there is no "
    "measurement"
)


class DeltaNet(NamedTuple):
    """A DeltaNet has the sizes of a gated DeltaNet."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    """Width of the convolution [tokens]."""

    @property
    def state(self) -> int:
        """Size [B] of the state of a sequence: a matrix for each head in single precision, and the last
        inputs of the convolution in 16 bits."""
        matrices = self.value_heads * self.key_dim * self.value_dim * SINGLE
        return matrices + 2 * self.kernel * self._mixed

    @property
    def _mixed(self) -> int:
        """Elements of queries, keys and values of a token."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def modules(self, hidden: int, name: str = "linear_attn") -> tuple[Module, ...]:
        """Return the modules of one layer in call order."""
        values, mixed = self.value_heads * self.value_dim, self._mixed
        own = (
            Parameter(f"{name}.dt_bias", self.value_heads),
            Parameter(f"{name}.A_log", self.value_heads),
            Parameter(f"{name}.conv1d.weight", mixed * self.kernel),
        )
        core = activation(f"{name}.delta_rule", values, reads=1, writes=1)._replace(
            hooked=False, in_features=mixed + values, state=self.state
        )
        return (
            container(name)._replace(parameters=own, parallel="heads"),
            linear(f"{name}.in_proj_qkvz", hidden, mixed + values, parallel="column"),
            linear(f"{name}.in_proj_ba", hidden, 2 * self.value_heads, parallel="column"),
            core,
            rms_norm(f"{name}.norm", self.value_dim, heads=self.value_heads, parallel="heads"),
            linear(f"{name}.out_proj", values, hidden, parallel="row"),
        )


def every_nth(layers: int, interval: int) -> tuple[str, ...]:
    """Return the kinds of layers of which every ``interval``-th has full attention."""
    return tuple(FULL if (layer + 1) % interval == 0 else LINEAR for layer in range(layers))


def is_linear(kinds: Sequence[str]) -> tuple[bool, ...]:
    """Return which layers have linear attention."""
    return tuple(one == LINEAR for one in kinds)
