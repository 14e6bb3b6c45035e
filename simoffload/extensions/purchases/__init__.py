"""What to buy: a whole machine for a model, with its best program and format, or parts of a catalogue."""

from simoffload.extending import Command, Extension

EXTENSION = Extension(
    commands={
        "compare": Command("compare machines for a model", f"{__name__}.command:add_to_compare"),
        "advise": Command("search a catalogue for purchases", f"{__name__}.command:add_to_advise"),
    }
)
"""What this extension brings, by name."""
