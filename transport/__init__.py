"""How two machines talk: node identity, wire messages, signalling, and WebRTC links between peers.

This package imports nothing by itself, so that who needs only a key or a message does not load WebRTC. Start at
``transport.peer.peer`` (links), ``protocol.identity`` (keys), ``protocol`` (messages); ``common.errors`` draws the errors.
"""
