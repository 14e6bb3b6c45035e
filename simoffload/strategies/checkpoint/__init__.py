"""Checkpoints of training: their contents, how they are written, and the time that they cost a run."""
