"""The Docker engine and the image that jobs run in: what is missing, and how it comes here."""
