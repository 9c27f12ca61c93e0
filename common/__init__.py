"""The ground floor: what every room uses and that knows none of them: clock, errors, terminals, URLs, encrypted files."""
