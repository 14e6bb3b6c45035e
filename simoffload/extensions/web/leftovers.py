"""What is left of a server that was killed: the folder of its processes, which the process that makes workers
removes. It imports this first, and lives until the server and all workers have ended, however they did."""

from __future__ import annotations

import atexit
import os
import shutil
import signal

FOLDER = "SIMOFFLOAD_PAGE_FOLDER"
"""Variable of the environment with the folder, for that process alone."""

if folder := os.environ.pop(FOLDER, ""):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that is closed ends the server
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
