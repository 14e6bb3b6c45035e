"""Calibration measures the components of a real machine one by one and records real runs on it.

``micro`` measures components and makes profiles, ``deepspeed`` records real runs, and ``compare`` compares
them with predictions. PyTorch, DeepSpeed and transformers are imported in child processes only: ``jobs`` is
the side of the parent, ``worker`` that of the children, and ``child`` has functions that all of these share.
"""

from simoffload.extending import Command, Extension

EXTENSION = Extension(
    commands={
        "detect": Command(
            "write a platform file for this machine, from what it says of itself",
            f"{__name__}.profile_files:add_detect",
            "What is there, and what is mine?",
        ),
        "profiles import": Command(
            "make a profile from measurements of fio and other tools",
            f"{__name__}.profile_files:add_import",
        ),
        "calibrate": Command(
            "measure this machine, run real DeepSpeed and vLLM, compare predictions",
            f"{__name__}.commands:add",
            "What is there, and what is mine?",
        ),
    },
    examples={
        "detect": "detect -o machine.yaml",
        "calibrate": "calibrate micro -o machine --quick",
        "profiles import": "profiles import fio read.json --id my-drive -o my-drive.yaml",
        "calibrate micro": "calibrate micro -o machine --storage /mnt/nvme",
        "calibrate deepspeed": "calibrate deepspeed runs.yaml -o offload",
        "calibrate vllm": "calibrate vllm runs.yaml -o serving",
        "calibrate compare": "calibrate compare offload/runs.json",
    },
)
"""What this extension brings, by name."""
