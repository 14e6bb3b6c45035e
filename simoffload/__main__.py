"""``python -m simoffload``."""

from __future__ import annotations

import sys

from simoffload.cli import main

if __name__ == "__main__":
    sys.exit(main())
