"""Configuration: the only place that reads the configuration file or LANEWISE_* environment variables."""

from proxy.settings.model import LANES, Settings
from proxy.settings.sections import Backend, Lane, Output

__all__ = ["LANES", "Backend", "Lane", "Output", "Settings"]
