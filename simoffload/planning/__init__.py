"""Questions that take more than one simulation."""
