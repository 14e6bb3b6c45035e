"""Runs of vLLM with random weights: settings and requests (parent), the engine and its passes (child)."""
