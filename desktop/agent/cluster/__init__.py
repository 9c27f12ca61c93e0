"""Where a job's code runs when a Kubernetes cluster is lent: pods that the agent starts, watches and ends (decision 78)."""
