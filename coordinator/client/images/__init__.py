"""Images that a submitter brings: made ready from what builders write, signed, sent, listed."""
