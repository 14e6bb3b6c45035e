"""The inference workload: a batch of prompts from which tokens are generated."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simoffload.documents import Frozen

__all__ = ["Inference"]

Count = Annotated[int, Field(strict=True, ge=1)]


class Inference(Frozen):
    """Greedy generation with a key-value cache: one prefill, then one forward pass per token.

    Batches are per rank, as ZeRO-Inference runs data-parallel: every rank generates for its own
    prompts while all ranks share the weights.
    """

    kind: Literal["inference"] = "inference"
    batch_size: Annotated[Count, Field(le=1_000_000)]
    """Number of sequences per rank."""
    prompt_length: Annotated[Count, Field(le=10_000_000)]
    """Number of tokens of each prompt."""
    output_length: Annotated[Count, Field(le=10_000_000)]
    """Tokens generated per sequence; the prefill yields the first, each decode step one more."""

    @property
    def decode_steps(self) -> int:
        """The number of forward passes after the prefill."""
        return self.output_length - 1

    @property
    def max_context(self) -> int:
        """The number of tokens in the key-value cache after the last pass."""
        return self.prompt_length + self.output_length - 1
