"""Memory of a training run: what every tier holds, over time, and what others' estimates say."""
