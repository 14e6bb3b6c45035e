"""Imported by the process from which workers are forked: what the first answer needs is then there."""

from __future__ import annotations

import gc

from simoffload.extensions.web.questions import START, answer

answer(START)
gc.collect()
gc.freeze()  # objects that are never collected stay shared between the workers
