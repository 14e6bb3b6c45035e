"""Sweeps: one scenario at many points, in many processes, with a journal that survives."""

from simoffload.extending import Command, Extension, OwnSection

EXTENSION = Extension(
    sections={
        "sweep": OwnSection(f"{__name__}.definition:SweepSection", f"{__name__}.definition:define_sweep")
    },
    commands={
        "sweep": Command(
            "simulate a scenario at many points and write a table",
            f"{__name__}.command:add",
            "What if? (many points, or in the browser)",
        ),
    },
    examples={"sweep": "sweep ddn/bloom-mod-2 --axis equipment.pcie.gen4=gen3,gen4,gen5"},
)
"""What this extension brings, by name."""
