"""A family of models: attention with one projection for queries, keys and values, and no positions.

``python wide_family.py run wide_family.yaml`` simulates such a model.
"""

from typing import ClassVar

from simoffload.cli import main
from simoffload.models import families
from simoffload.models.families.base import Derived, Extent, FamilyConfig, ModuleLists
from simoffload.models.modules import (
    Operations,
    SavedActivations,
    Traits,
    activation,
    attention,
    container,
    embedding,
    head,
    layer_norm,
    linear,
)


@families.register
class Wide(FamilyConfig):
    """The keys of its ``config.json``, and its modules in the order of their calls."""

    family: ClassVar[str] = "wide"
    traits: ClassVar[Traits] = Traits(
        architecture="WideForCausalLM",
        attention="sdpa",
        operations=Operations(
            block=4, mlp=0, norm=1, activation=0, attention=12, eager=8, rotary=0, router=0
        ),
        saved=SavedActivations(kept=1, product=True, masks=0, wide=2, narrow=1, scores=12),
        leaf_modules=(),
    )

    intermediate_size: Extent

    def derived(self) -> Derived:
        """Every head has its own keys."""
        heads = self.num_attention_heads
        return Derived(heads, self.hidden_size // heads, self.intermediate_size, None)

    def modules(self) -> ModuleLists:
        """A layer has four linear modules."""
        hidden, wide = self.hidden_size, self.intermediate_size
        layer = (
            container("WideLayer", reads=4 * hidden, writes=2 * hidden, touched=1),
            layer_norm("norm", hidden),
            linear("mix", hidden, 3 * hidden, parallel="fused"),
            attention("attention", query_width=hidden),
            linear("out", hidden, hidden, parallel="row"),
            linear("up", hidden, wide, parallel="column"),
            activation("act", wide, reads=1, writes=1),
            linear("down", wide, hidden, parallel="row"),
        )
        before = (container("WideForCausalLM"), embedding("words", self.vocab_size, hidden))
        after = (layer_norm("last", hidden), head(hidden, self.vocab_size))
        return ModuleLists(before, (layer,) * self.num_hidden_layers, after)


if __name__ == "__main__":
    raise SystemExit(main())
