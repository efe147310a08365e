"""LANEWISE_* variables as nested values, read by pydantic-settings.

Imported only when such a variable is set: the library's import is a quarter of the time that `validate` takes.
"""

from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from proxy.settings.model import Settings


class _Environment(Settings, BaseSettings):
    """The settings as the library looks for them. Texts stay texts: our own fields read lists from them."""

    model_config = SettingsConfigDict(
        env_prefix="LANEWISE_", env_nested_delimiter="__", extra="forbid", enable_decoding=False
    )


def read() -> dict[str, Any]:
    """Return what the variables of the process say, by key."""
    return EnvSettingsSource(_Environment)()
