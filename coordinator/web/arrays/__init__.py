"""Container images of submitters, as the interface has them."""
