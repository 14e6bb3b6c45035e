"""Measuring the parts of a machine: links, memories, kernels, storage and the host thread of DeepSpeed.

``plan``, ``launch``, ``record``, ``fit_*`` and ``profiles`` run without PyTorch. The others run in child
processes: ``probe`` says what the machine has, ``worker`` carries out sections.
"""
