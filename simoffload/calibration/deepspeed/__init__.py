"""Running real ZeRO-3 offload and recording it. ``worker``, ``build`` and ``recorders`` belong to
the child processes; only they may import PyTorch."""
