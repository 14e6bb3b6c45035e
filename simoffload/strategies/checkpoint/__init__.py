"""Checkpoints of training: contents, writers, times, and cost for a run."""
