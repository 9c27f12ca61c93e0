"""The data path of a WebRTC association: SCTP over DTLS as on any other data channel, but paced, rate-based and batched.

aiortc keeps the handshake, the data channels' life and the stream resets; once the association is established, everything that
carries or acknowledges data runs here.

=============  =====================================================================================================
module         what it does
=============  =====================================================================================================
control        what a congestion controller is told and what it answers; the figures of a path
=============  =====================================================================================================
"""
