"""Coordinators that stand by take requests and nodes in the place of the one at work, or of those of several cells.

::

    people, programs ---.                      .--- reads -----------> PostgreSQL (a snapshot, which changes nothing)
                        +--> a front ----------+
    nodes --------------'                      '--- everything else --> the coordinator at work, of the cell that it is about

A front answers what PostgreSQL holds itself: jobs, their pages, curves, events, streams, books. What only those at work have in
their memory (who is connected, links, the market) it asks them for, once for all who ask within a moment. Whatever changes
something, it leads there as it came; and nodes' connections, message by message. While another one takes over, what it reads goes
on, and what it leads waits.
"""
