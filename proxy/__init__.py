"""The lanewise proxy: lanes, bounded queues and a prefill budget in front of vLLM servers."""

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: that takes as long as all that `lanewise --help` imports."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("lanewise")
    except PackageNotFoundError:  # a source tree that is on the path but not installed
        return "0+unknown"
