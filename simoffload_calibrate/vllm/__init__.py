"""The engine of vLLM with random weights, and the runs on it (child process only)."""
