"""The lanewise proxy: lanes, bounded queues and a prefill budget in front of vLLM servers."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("lanewise")
except PackageNotFoundError:  # a source tree that is on the path but not installed
    __version__ = "0+unknown"
