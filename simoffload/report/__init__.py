"""What a person reads: ``text`` and ``comparison_text`` for the terminal, ``page`` for HTML files that need
nothing else; ``kinds`` holds what is said differently of inference and of training.
"""
