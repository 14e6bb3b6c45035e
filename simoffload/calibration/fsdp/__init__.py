"""Measuring PyTorch's FSDP: what its host thread and its AdamW cost, and whole steps of real models.

``python -m simoffload.calibration.fsdp FOLDER`` runs everything on one machine within a time limit.
``cases`` says what is run and which runs stay out of view; ``worker`` and what it imports run in child
processes, which alone import PyTorch.
"""
