"""Requests that arrive one after the other at a replica: latencies, goodput, users."""

from simoffload.extending import Command, Extension

EXTENSION = Extension(
    commands={
        "stream": Command(
            "simulate requests that arrive at a replica: latencies, goodput, users per GPU",
            f"{__name__}.command:add",
            "How many users?",
        ),
    },
    examples={"stream": "stream serving/llama-3.1-8b-chat --slo ttft=2s"},
)
"""What this extension brings, by name."""
