"""What all services stand on: the unit of work, leases, logs, notifications, the way out to the internet."""
