"""Running a committed step again: traces, openings, replay, and how far classes may differ."""
