"""A relay: carries the packets of two homes that cannot reach each other, and tells each its address (TURN and STUN).

::

    options      what the operator chose                    server     listeners, timers, beginning and end
    message      STUN messages as bytes                     desk       answers requests
    credentials  time-limited passwords, nonces             allocation one client's relayed address
    peer_policy  which addresses may be peers               usage      counters, quotas, rates
    guard        what strangers may cost                    stream     clients over TCP and TLS
    datagrams    UDP in batches                             metrics    Prometheus text, health
    speed        tests the speed of a client's line
    announce     tells the coordinator                      coturn     Debian's relay, with the same options

Errors: ``RelayError`` and below it ``OptionsError`` (an option cannot be used), ``ListenError`` (an address or port cannot be
used), ``AnnounceError`` (the coordinator refuses or cannot be reached) and ``CoturnError``. ``MalformedMessageError``,
``CredentialError`` and ``RefusedError`` never leave the package: they become silence or an answer.

The relay sees DTLS only; the keys are the nodes'.
"""
