"""Reports for people: one :class:`~simoffload.report.document.ReportDocument`, built once and rendered in
several forms.

``from_result``, ``from_comparison``, ``from_advice`` and ``from_fit`` build it of what ``sections`` says of
each subject; ``terminal``, ``markdown``, ``html`` and ``long_table`` render it. ``presentation`` holds what
differs between inference, training and checkpoints, ``charts`` and its neighbours what is drawn.
"""
