"""Networks built of Linux namespaces, for tests that need more than one machine."""
