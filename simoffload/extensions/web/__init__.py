"""The page of ``simoffload serve``: what a scenario gives, while its inputs are changed.

A ``State`` (variants, each a base with edits) leads to scenarios, these to results, and results to what the
page shows. ``questions`` answers a state and has no memory of its own; ``jobs`` lets processes of their own
ask it, within limits; ``page`` shows the answer; ``guard`` decides who may ask.
"""

from simoffload.extending import Command, Extension

EXTENSION = Extension(
    commands={
        "serve": Command(
            "show a page in the browser on which all inputs can be changed",
            f"{__name__}.command:add",
            "What if? (many points, or in the browser)",
        ),
    },
    examples={"serve": "serve gpt-oss-120b --gpu rtx-4090"},
)
"""What this extension brings, by name."""
