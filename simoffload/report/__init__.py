"""Reports for people: one :class:`~simoffload.report.document.ReportDocument`, rendered in several formats.

``from_result``, ``from_comparison`` and ``from_fit`` build the document from ``sections``; ``terminal``,
``markdown`` and ``html`` render it. ``presentation`` contains the differences between inference, training and
checkpoints; ``charts``, ``comparison_charts`` and ``timeline`` draw with ``plotting``.
"""
