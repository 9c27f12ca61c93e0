"""Which release this is."""

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    """The installed version; ``0`` where the code runs without being installed."""
    try:
        return version("cottage")
    except PackageNotFoundError:
        return "0"
