"""What the market program and settlement cost, in calm and under faults."""
