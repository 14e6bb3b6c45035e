"""Which machine to buy for a model: whole machines, each with its best program and format."""

from simoffload.extending import Command, Extension

EXTENSION = Extension(
    commands={"compare": Command("compare machines for a model", f"{__name__}.command:add")}
)
"""What this extension brings, by name."""
