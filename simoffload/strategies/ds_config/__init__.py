"""DeepSpeed's configuration: the sections of ds_config.json, and the settings derived from them."""

from simoffload.strategies.ds_config.keys import (
    PRECISIONS,
    AioSection,
    DeepSpeedConfig,
    Extension,
    Key,
    OffloadOptimizerSection,
    OffloadParamSection,
    ZeroSection,
    extensions,
)
from simoffload.strategies.ds_config.settings import LATEST, OffloadSettings, parse_version, resolve_settings

__all__ = [
    "LATEST",
    "PRECISIONS",
    "AioSection",
    "DeepSpeedConfig",
    "Extension",
    "Key",
    "OffloadOptimizerSection",
    "OffloadParamSection",
    "OffloadSettings",
    "ZeroSection",
    "extensions",
    "parse_version",
    "resolve_settings",
]
