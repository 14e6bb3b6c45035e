"""Runs of Hugging Face models under Accelerate, and under the tensor parallelism of transformers.

``worker`` belongs to the child processes, which alone import PyTorch.
"""
