"""Configuration: the only place that reads the configuration file or LANEWISE_* environment variables."""

from proxy.settings.checks import warnings
from proxy.settings.load import Flag, Loaded, admin_address, auth_section, load
from proxy.settings.model import LANES, Settings
from proxy.settings.sections import Backend, Lane, Output
from proxy.settings.units import Address
from proxy.settings.yamlfile import ConfigurationError

__all__ = [
    "LANES",
    "Address",
    "Backend",
    "ConfigurationError",
    "Flag",
    "Lane",
    "Loaded",
    "Output",
    "Settings",
    "admin_address",
    "auth_section",
    "load",
    "warnings",
]
