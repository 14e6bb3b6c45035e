"""Measuring the parts of a machine: links, memories, kernels, storage and the host thread of DeepSpeed.

``launch`` opens the machine, ``session`` measures its sections in rounds, ``record`` keeps what was found
(``pooling``: one number of all repetitions; ``noise``: how noisy the host was), and ``fit_*`` and
``profiles`` make profiles of it: all without PyTorch. ``worker`` and what it imports (``probe``, ``links``,
``gpu``, ``host``, ``hooks``, ``storage``, ``timing``) run in child processes, which ``workers`` starts.
"""
