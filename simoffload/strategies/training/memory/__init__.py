"""Memory of a training run: the need of each tier at each stage, and published estimates."""
