"""Files: uploads, datasets, models and checkpoints, who may read each, and how long it stays."""
