"""The agent's side of the coordinator: session, reports, artifacts, and what is measured of the line."""
