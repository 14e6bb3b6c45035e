"""DeepSpeed's configuration: the sections of ds_config.json, and the settings derived from them."""

from simoffload.strategies.ds_config.keys import PRECISIONS, DeepSpeedConfig, OffloadParamSection
from simoffload.strategies.ds_config.settings import LATEST, OffloadSettings, parse_version, resolve_settings

__all__ = [
    "LATEST",
    "PRECISIONS",
    "DeepSpeedConfig",
    "OffloadParamSection",
    "OffloadSettings",
    "parse_version",
    "resolve_settings",
]
