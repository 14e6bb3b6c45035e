"""Training under ZeRO: the trace of a step, its operations, and what it keeps where."""
