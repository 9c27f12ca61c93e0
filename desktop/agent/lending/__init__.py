"""When this computer lends: what is known of it, what its owner wants, and what follows. Pure: no clock, no sensors."""
