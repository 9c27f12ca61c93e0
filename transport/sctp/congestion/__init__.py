"""How fast an association sends."""
