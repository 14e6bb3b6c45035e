"""Memory of a training run: what every tier holds, over time, and what others' estimates say."""

from simoffload.strategies.training.memory.activations import Activations, activations_of, saved_by_layer
from simoffload.strategies.training.memory.estimators import (
    Estimate,
    estimates_for,
    largest_module_numel,
    white_paper_rule,
    zero2_estimate,
    zero3_estimate,
)
from simoffload.strategies.training.memory.moments import (
    INITIALISATION,
    MICRO_STEP,
    OPTIMIZER_STEP,
    training_moments,
)
from simoffload.strategies.training.memory.states import StateBytes, moment_bytes, state_bytes
from simoffload.strategies.training.memory.weights import Weight, weights_of

__all__ = [
    "INITIALISATION",
    "MICRO_STEP",
    "OPTIMIZER_STEP",
    "Activations",
    "Estimate",
    "StateBytes",
    "Weight",
    "activations_of",
    "estimates_for",
    "largest_module_numel",
    "moment_bytes",
    "saved_by_layer",
    "state_bytes",
    "training_moments",
    "weights_of",
    "white_paper_rule",
    "zero2_estimate",
    "zero3_estimate",
]
