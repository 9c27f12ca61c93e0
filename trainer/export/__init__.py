"""From a run's states to files that others read: model folders, adapters, metrics; and text from a model."""
