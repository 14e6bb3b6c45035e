"""Extensions of this distribution, each a folder: what they bring stands in its ``__init__``.

The core imports none of them; it finds them by their entry points, as it finds those of others.
"""
