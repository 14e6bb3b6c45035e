"""Running real ZeRO-3 offload and recording it. Only the modules of the child process import torch:
``worker``, ``build``, ``tracing``, ``storage_log`` and ``streams``."""
