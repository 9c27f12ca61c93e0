"""How two machines talk: node identity, wire messages, signalling, and WebRTC links between peers."""
