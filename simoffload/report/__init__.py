"""What a person reads of results: ``sections`` says what is told, subject by subject, and ``story`` in which
order; ``page`` (HTML that needs nothing else), ``markdown``, ``long_table``, ``text`` and ``comparison_text``
(terminal) show it. ``kinds`` holds what is said differently of inference and of training.
"""
