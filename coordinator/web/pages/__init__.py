"""The pages: rendered here, whole and readable without scripts; scripts only keep them fresh and resume uploads."""
