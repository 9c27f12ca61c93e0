"""What arrays of containers cost beside the work itself."""
