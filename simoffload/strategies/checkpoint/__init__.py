"""Checkpoints of training: what is saved and by whom, how long it takes, what it costs a run."""
