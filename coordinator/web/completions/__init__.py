"""The way in for programs that speak OpenAI's API."""
