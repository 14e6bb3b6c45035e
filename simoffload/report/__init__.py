"""What a person reads: ``text`` for the terminal, ``page`` for one HTML file that needs nothing else."""
