"""Measuring a home's line: the kind of its NAT, the way to each relay, and the rates up and down, in under ten seconds.

::

    run       all phases, each within its deadline        target  a relay, and the ways to it
    binding   one UDP socket that asks STUN servers       nat     RFC 5780: mapping and filtering
    ping      round trips and loss                        speed   rates through a relay's speed test
    result    what was found                              words   the same for people
    offer     asks a coordinator for its relays           peer    the same over a link to a peer
    mailbox   messages between two clients of a relay     pair    two machines that meet there
    phase     how far a test is

Errors: ``NettestError``, and below it ``NoRelayError`` (nothing to measure against), ``SpeedError`` (a relay does not measure the
speed; the text says why) and ``CoordinatorError`` (a coordinator does not tell its relays).
"""
