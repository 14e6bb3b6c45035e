"""Measurements of PyTorch's FSDP: costs of its host thread and of AdamW, and steps of real models.

``python -m simoffload.calibration.fsdp FOLDER`` runs everything on one machine within a time limit.
``runs`` lists the runs and says which are held out. ``worker`` and ``steps`` run in child processes, which
alone import PyTorch.
"""
