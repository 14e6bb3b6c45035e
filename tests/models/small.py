"""A model small enough to count by hand."""

from __future__ import annotations

LLAMA = {
    "family": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 100,
}
