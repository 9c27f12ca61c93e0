"""What is done: each service owns one concern and meets the others through the store and through ``ports``."""
