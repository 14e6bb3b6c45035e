"""Keys that a config.json of any family may have, and that influence no number of parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field

from simoffload.documents import Document, Frozen, Location, listing, quoted, suggest
from simoffload.errors import shortened
from simoffload.models.families.base import Flag
from simoffload.models.modules import DTYPE_BYTES, Dtype

_SavedDtype = Literal[
    "auto",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "torch.float16",
    "torch.bfloat16",
    "torch.float32",
    "torch.float64",
    "torch.float8_e4m3fn",
    "torch.float8_e5m2",
]
"""Types of PyTorch in which checkpoints are saved."""
_ACTIVATIONS = (
    "gelu",
    "gelu_10",
    "gelu_accurate",
    "gelu_fast",
    "gelu_new",
    "gelu_python",
    "gelu_python_tanh",
    "gelu_pytorch_tanh",
    "hardswish",
    "laplace",
    "leaky_relu",
    "linear",
    "mish",
    "prelu",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "sigmoid",
    "silu",
    "sqrtsoftplus",
    "swish",
    "tanh",
    "xielu",
)
"""Activation functions by name (``ACT2CLS``, activations.py of transformers 5.23)."""


def _known_activation(name: str) -> str:
    if name not in _ACTIVATIONS:
        near = suggest(name, _ACTIVATIONS) or f"; known: {listing(list(_ACTIVATIONS))}"
        raise ValueError(f"transformers has no activation function {quoted(name)}{near}")
    return name


_Activation = Annotated[str, AfterValidator(_known_activation)]
_Positive = Annotated[float, Field(strict=True, gt=0)]
_NotNegative = Annotated[float, Field(strict=True, ge=0)]
_Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]
_Number = Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)]


class CommonKeys(Frozen):
    """CommonKeys are checked because a wrong value shows a damaged file."""

    model_config = ConfigDict(extra="ignore")

    dtype: _SavedDtype | None = None
    torch_dtype: _SavedDtype | None = None
    hidden_act: _Activation | None = None
    hidden_activation: _Activation | None = None
    activation_function: _Activation | None = None
    rms_norm_eps: _Positive | None = None
    layer_norm_eps: _Positive | None = None
    layer_norm_epsilon: _Positive | None = None
    rope_theta: _Positive | None = None
    routed_scaling_factor: _Positive | None = None
    router_aux_loss_coef: _NotNegative | None = None
    router_jitter_noise: _NotNegative | None = None
    query_pre_attn_scalar: _Positive | None = None
    attention_dropout: _Fraction | None = None
    hidden_dropout: _Fraction | None = None
    initializer_range: _Fraction | None = None
    pretraining_tp: _Number | None = None
    qk_head_dim: _Number | None = None
    original_max_position_embeddings: _Number | None = None
    expert_capacity: _Number | None = None
    num_nextn_predict_layers: Annotated[int, Field(strict=True, ge=0, le=1000)] | None = None
    norm_topk_prob: Flag | None = None
    output_router_logits: Flag | None = None
    use_cache: Flag | None = None
    transformers_version: str | None = None


class SavedType(NamedTuple):
    """The type in which a config.json states that the weights were saved."""

    name: str
    at: Location
    """Position of the key that states it."""

    @property
    def dtype(self) -> Dtype | None:
        """The data type, if a model may have it."""
        return self.name if self.name in DTYPE_BYTES else None

    @property
    def is_fp8(self) -> bool:
        """Whether it is a floating-point type of 8 bits."""
        return self.name.startswith("float8_")


def saved_type(document: Document, at: Location) -> SavedType | None:
    """Return the type in which a config.json states that the weights were saved; None where it states none.

    ``at`` is where the keys of the model are; the type may also be at the top.
    """
    inner: Any = document.data
    for key in at:
        inner = inner[key]
    for place, section in ((at, inner), ((), document.data)):
        for key in ("dtype", "torch_dtype"):
            value = section.get(key)
            if value is not None and value != "auto":
                return SavedType(shortened(str(value)).removeprefix("torch."), (*place, key))
    return None
