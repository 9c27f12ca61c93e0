"""What can go wrong in a network test; the tree is drawn in the package's docstring."""

from common.errors import TransportError


class NettestError(TransportError):
    """The test cannot be done."""


class NoRelayError(NettestError):
    """There is no relay to measure against."""


class SpeedError(NettestError):
    """A relay does not measure the speed of this line now."""


class CoordinatorError(NettestError):
    """A coordinator does not tell its relays."""
