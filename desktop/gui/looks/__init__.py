"""What is there to be looked at: the picture of what is lent, whether pictures may move, and the moment of the first payment."""
