"""The data path of a WebRTC association: SCTP over DTLS as on any other data channel, but paced, rate-based and batched.

aiortc keeps the handshake, the data channels' life and the stream resets; once the association is established, everything that
carries or acknowledges data runs here.

=============  =====================================================================================================
module         what it does
=============  =====================================================================================================
connection     an aiortc peer connection with an ``association`` of ours
association    aiortc's SCTP transport with ``datapath`` in the place of its own; the only one that knows aiortc's privates
datapath       joins everything below; no coroutine, no task
send           what was sent, what is lost and goes again (schedule: whose turn it is; rtt: how long answers take)
receive        what came, which messages are whole, what an acknowledgement says
packet, dcep   SCTP packets and channel openings as bytes
dtls           records sealed and opened in batches
pacing, meter  when packets may leave; what has crossed
control        what a congestion controller is told and what it answers; the figures of a path
congestion     the controller (competing, filters, phases: its parts)
datagram       how datagrams meet the system (offload: what Linux does better; route: what ICE has chosen)
mtu, probing   the greatest packet that the path carries, and the probes that find it
allowance      the limits of the process on upload, download and the month
=============  =====================================================================================================
"""
