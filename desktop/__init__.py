"""The provider's program: a headless agent, and (apart from it) the windows."""
