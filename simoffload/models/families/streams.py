"""The common parts of models whose residual is several streams: manifold-constrained hyper-connections (mHC).

Modules as in transformers/models/deepseek_v4/modeling_deepseek_v4.py at 5.23.0 (DeepSeek-V4's report, section
2.2).
"""

from __future__ import annotations

from collections.abc import Iterable

from simoffload.models.families.base import Count, ModuleLists
from simoffload.models.families.experts import ExpertsConfig
from simoffload.models.modules import Module, Parameter, Strided, linear, rms_norm, rotary


def own_operations(iterations: int) -> int:
    """Return the operations of a layer's two hyper-connections: for each, 16 for weights and the sum of
    streams, 6 for each iteration of Sinkhorn and Knopp, and 8 that mix the streams (our count)."""
    return 2 * (16 + 6 * iterations + 8)


def unweighted_norm(name: str, width: int, *, heads: int = 1) -> Module:
    """Build an RMSNorm without a weight: cast (1 read, 2 written), square (2, 2), mean (2, 0), scale
    (1, 1)."""
    wide = heads * width
    norm = rms_norm(name, width, heads=heads, parallel="heads" if heads > 1 else "whole")
    return norm._replace(
        parameters=(), in_features=6 * wide, out_features=5 * wide, strided=Strided(3 * wide, 7 * wide)
    )


class StreamsConfig(ExpertsConfig):
    """A model in whose layers hyper-connections sum up streams before each half, and mix them after it."""

    hc_mult: Count = 4
    """Number of streams of a token."""

    def _connection(
        self, name: str, weights: int, *, prefix: str = "", scales: int = 3
    ) -> tuple[Module, ...]:
        """Return the modules that compute ``weights`` numbers from all streams and sum these up.

        It is a product, in single precision, of the streams that are cast (1 read, 2 written) and normalized;
        they are then weighed (1, 2) and added (2, 1 for all).
        """
        wide = self.hc_mult * self.hidden_size
        own = (
            Parameter(f"{name}.{prefix}fn", weights * wide, columns=wide),
            Parameter(f"{name}.{prefix}base", weights),
            Parameter(f"{name}.{prefix}scale", scales),
        )
        product = linear(name, 6 * wide, weights + 4 * wide + self.hidden_size, kind="router")
        return (product._replace(parameters=own), unweighted_norm(f"{name}.input_norm", wide))

    def _halves(self, attend: Iterable[Module], feed_forward: Iterable[Module]) -> tuple[Module, ...]:
        """Return the modules of a layer."""
        weights = (2 + self.hc_mult) * self.hc_mult
        return (
            *self._connection("attn_hc", weights),
            rms_norm("input_layernorm", self.hidden_size, single=True),
            *attend,
            *self._connection("ffn_hc", weights),
            rms_norm("post_attention_layernorm", self.hidden_size, single=True),
            *feed_forward,
        )

    def _around_streams(self, class_name: str, *layers: tuple[Module, ...], rotations: int) -> ModuleLists:
        """Return the lists of a model with ``layers``.

        Each adds the results of both halves to the streams: a result is weighed for each stream (1 read, 1
        written for each), and these are mixed (1, 1) and added (2, 1).
        """
        streams, hidden = self.hc_mult, self.hidden_size
        own = (2 * (3 * streams + 1), 6 * streams)
        lists = self._around(class_name, *layers, rotary_outside=False, own=own)
        positions = (rotary("model.rotary_emb", self._rotary_dim // 2),) * rotations
        last = self._connection("model.hc_head", streams, prefix="hc_", scales=1)
        norm = rms_norm("model.norm", hidden, single=True)
        return lists._replace(before=(*lists.before, *positions), after=(*last, norm, *lists.after[1:]))
