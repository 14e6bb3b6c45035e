"""Running real ZeRO-3 offload and recording it. ``worker``, ``build``, ``tracing``, ``storage_log``,
``parts`` and ``streams`` belong to the child process; only they may import torch."""
