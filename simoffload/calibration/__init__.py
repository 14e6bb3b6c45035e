"""Measuring a real machine: what its parts do alone, and what real DeepSpeed runs on it take.

PyTorch, DeepSpeed and transformers are imported in child processes only.
"""
