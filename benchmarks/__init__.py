"""Programs that measure: each claim of speed, size or cost is the output of one of them (``python -m benchmarks.ROOM.NAME``)."""
