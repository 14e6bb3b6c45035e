"""The page of ``simoffload serve``: what a scenario gives, while its inputs are changed.

A ``State`` (variants, each a base with edits) leads to scenarios, these to results, and results to what the
page shows. ``questions`` answers a state and has no memory of its own; ``jobs`` lets processes of their own
ask it, within limits; ``page`` shows the answer; ``guard`` decides who may ask.
"""
