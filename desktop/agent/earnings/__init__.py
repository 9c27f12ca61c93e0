"""What was earned and promised, the wallet, and why a job has brought what it has."""
