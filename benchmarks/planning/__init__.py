"""How good plans and prices are, for published and simulated networks."""
