"""Hooks of passes: what programs add before, beside and after the modules of a model."""
