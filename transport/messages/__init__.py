"""Messages over data channels: frames, lanes, flow control, resuming."""
