"""Reports for people: one :class:`~simoffload.report.document.ReportDocument`, built once and rendered in
several forms.

``from_result``, ``from_comparison`` and ``from_fit`` build it from ``sections``; ``terminal``, ``markdown``
and ``html`` render it. ``presentation`` holds what differs between inference, training and checkpoints;
``charts``, ``comparison_charts`` and ``timeline`` draw with ``plotting``.
"""
