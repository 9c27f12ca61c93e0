"""What this machine can do: benchmark, meters, power."""
