"""This folder contains the evidence: measured runs, published figures, and the scripts that predict them.

``python -m validation`` predicts them all and writes docs/VALIDATION.md, the pages and figures behind it, and
the tables that the package carries. Nothing in ``simoffload`` imports this folder, and the wheel does not
contain it.
"""
