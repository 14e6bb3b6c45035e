"""Calibration: the parts of a real machine are measured one by one, and real runs on it are recorded.

PyTorch, DeepSpeed and transformers are imported in child processes only.
"""
