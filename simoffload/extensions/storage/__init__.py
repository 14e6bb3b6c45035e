"""Checkpoints of training, the data that it reads, and the lifetime of the drives that runs write to."""

from simoffload.extending import Addition, Extension, Offer, Work

EXTENSION = Extension(
    programs=(Offer("checkpoint", f"{__name__}.program:CheckpointStorage", frozenset({"checkpoint"})),),
    works={
        "checkpoint": Work(
            f"{__name__}.result:CheckpointResult",
            f"{__name__}.runs:CheckpointMeasures",
            f"{__name__}.report:presentation_of",
        )
    },
    additions={
        "checkpoint": Addition(
            section="checkpoint",
            planned=f"{__name__}.runs:saving",
            stages=f"{__name__}.runs:stages_of_saving",
            sized=f"{__name__}.runs:size_of_checkpoints",
            timed=f"{__name__}.runs:times_of_checkpoints",
            shown=f"{__name__}.report:checkpoint",
        ),
        "data_loading": Addition(
            section="dataset",
            stages=f"{__name__}.runs:stages_of_loading",
            timed=f"{__name__}.runs:times_of_loading",
            shown=f"{__name__}.report:data",
        ),
        "drive_lifetime": Addition(
            timed=f"{__name__}.runs:lifetimes", shown=f"{__name__}.report:drive_endurance"
        ),
    },
)
"""What this extension brings, by name."""
