"""Two machines and one link: signalling, sessions, negotiation, changing to a better path."""
