"""Links between homes: rates, manners, latency, and how busy they keep computing."""
