"""Images of array jobs on this computer: whose are accepted, which are here, and what makes room for others."""
