"""What a coordinator tells those who watch it: requests as they are counted, and the metrics, for the keys of operators."""
