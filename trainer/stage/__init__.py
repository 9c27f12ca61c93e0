"""One stage of a pipeline: its layers, its schedule, its optimizer, what it sends and keeps."""
