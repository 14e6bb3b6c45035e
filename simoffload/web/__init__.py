"""The page of ``simoffload serve``: what a scenario gives, while its inputs are changed.

There is one idea: a ``State`` (variants, each a base with edits) leads to scenarios, these to results, and
results to what the page shows. ``questions`` answers a state and has no memory of its own; ``jobs`` asks it in
processes of their own, within limits; ``page`` shows the answer; ``guard`` decides who may ask.
"""
