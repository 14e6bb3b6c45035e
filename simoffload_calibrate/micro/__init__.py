"""Measurement of the components of a machine: links, memories, kernels, storage and DeepSpeed's host thread.

``session`` measures the sections of ``plan`` in rounds on the machine of ``bench`` and stores the results in
``record``; ``noise`` has the statistics for hosts that change their speed. ``fit_*`` and ``profiles`` make
profiles from the record. None of these imports PyTorch. ``worker`` runs in child processes, where ``gpu``,
``host``, ``links``, ``hooks`` and ``storage`` measure with the clocks of ``timing``.
"""
