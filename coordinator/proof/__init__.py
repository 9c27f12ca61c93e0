"""``cottage ledger check``: recomputes a job from the ledger and what its coordinator has published, and says what is not true.

::

    gather.py   reads the ledger (RPC) and the coordinator (REST) into a ``Case``
    checks.py   pure: a ``Case`` to one ``Finding`` after another
    cli.py      prints them; exit status 1 where one is an untruth
"""
