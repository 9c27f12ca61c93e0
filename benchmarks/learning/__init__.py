"""What replicas and pipelines learn, with how many bytes, and how quickly a stage computes."""
