"""Calibration measures the components of a real machine one by one and records real runs on it.

``micro`` measures components and makes profiles, ``deepspeed`` records real runs, and ``compare`` compares
them with predictions. PyTorch, DeepSpeed and transformers are imported in child processes only: ``jobs`` is
the side of the parent, ``worker`` that of the children, and ``child`` has functions that all of these share.
"""
