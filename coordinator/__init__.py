"""Who does what, when, for how much.

``app`` (composition root) > ``web`` (HTTP, WebSocket, pages) > ``services`` (what is done) > ``store`` (what is kept)
> ``domain`` (what is decided: pure, no I/O, no clock, no chance). ``client`` is the SDK for submitters and imports none of these.
"""
