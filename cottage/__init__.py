"""The ``cottage`` command: starts every role, as processes, and the demo that runs them all on one PC."""

__version__ = "0.1.0"
