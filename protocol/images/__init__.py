"""Images that submitters bring: what may be in one, how it lies in a file, and who has signed it."""
