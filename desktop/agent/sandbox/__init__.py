"""Where a job's code runs: apart from the owner's files and network."""
