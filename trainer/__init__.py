"""How a model learns in pieces: stages, schedules, codecs, outer steps, traces and their replay."""
