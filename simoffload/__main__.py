"""Entry point of ``python -m simoffload``."""

import sys

from simoffload.cli import main

if __name__ == "__main__":
    status = main()
    exec("")  # else an interrupt that passed through another exec() makes CPython end by SIGINT all the same
    sys.exit(status)
