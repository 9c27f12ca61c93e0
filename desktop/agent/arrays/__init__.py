"""Elements of array jobs on this computer: one container after the other, several at a time (``protocol.job.elements``)."""
