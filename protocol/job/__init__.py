"""The job document, and arithmetic that follows from it alone."""
