"""One revision a release."""
