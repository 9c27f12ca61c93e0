"""Coordinators that stand by take requests and nodes in the place of the one at work.

::

    people, programs ---.                      .--- reads -----------> PostgreSQL (a snapshot, which changes nothing)
                        +--> a front (stands by)
    nodes --------------'                      '--- everything else --> the coordinator at work

A front answers what PostgreSQL holds itself: jobs, their pages, curves, events, streams, books. What only the one at work has in
its memory (who is connected, links, the market) it asks that one for, once for all who ask within a moment. Whatever changes
something, it leads there as it came; and nodes' connections, message by message. While another one takes over, what it reads goes
on, and what it leads waits.
"""
