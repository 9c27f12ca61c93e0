"""What pages and the REST interface show, read from the store."""
