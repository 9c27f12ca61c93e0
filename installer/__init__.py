"""How Cottage gets onto machines."""
