"""The driver that writes passes: it walks the modules of a model, and hooks add what a program does."""
