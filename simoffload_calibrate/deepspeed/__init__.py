"""Runs of real ZeRO-3 offload and their records.

``worker``, ``build`` and ``recorders`` belong to the child processes, which alone import PyTorch.
"""
