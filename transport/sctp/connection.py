"""A peer connection whose data channels use the quick data path."""

from typing import Any

from aiortc import RTCDataChannel, RTCPeerConnection

from transport.sctp.association import FastSctpTransport


class FastPeerConnection(RTCPeerConnection):
    """As aiortc's, for data channels only, with a ``FastSctpTransport``."""

    @property
    def sctp(self) -> FastSctpTransport | None:
        """The SCTP transport; None before there is a data channel."""
        transport = super().sctp
        assert transport is None or isinstance(transport, FastSctpTransport)
        return transport

    def _RTCPeerConnection__createSctpTransport(self) -> None:  # noqa: N802 - aiortc's private name; there is no other way.
        private: Any = self
        transport = FastSctpTransport(private._RTCPeerConnection__createDtlsTransport())
        private._RTCPeerConnection__sctp = transport

        @transport.on("datachannel")
        def on_datachannel(channel: RTCDataChannel) -> None:
            self.emit("datachannel", channel)
