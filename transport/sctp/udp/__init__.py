"""How datagrams meet the system."""
