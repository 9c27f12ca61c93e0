"""Private sessions: one client and one node, over a WebRTC connection of their own."""
