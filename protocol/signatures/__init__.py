"""What is signed so that others believe it."""
