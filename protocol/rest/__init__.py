"""Resources of the REST interface."""
