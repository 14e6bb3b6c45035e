"""Measurement of the components of a machine: links, memories, kernels, storage and DeepSpeed's host thread.

``benchmarks`` has a class for each. ``session`` measures them in rounds on the machine of ``bench``, and
``record`` stores the results; ``noise`` has the statistics for hosts that change their speed. ``fit_*`` and
``profiles`` make profiles from the record. None of these imports PyTorch: in child processes ``gpu``,
``host``, ``links``, ``hooks``, ``eager`` and ``storage`` measure with the clocks of ``timing``.
"""
