"""Everything that crosses a process boundary, as closed unions of bounded types.

``ids``       addresses, digests, leases: the bounded scalars
``codec``     the one place where bytes become types, and the one error it raises
``job``       the job document
``models``    what a model's config means in tensors and numbers
``rest``      the resources of the REST interface
``task``      commands to and reports from a task (a stage of a replica), the same from coordinator to worker
``plan``      who does what in a round
``audit``     audits of committed steps, and disputes down to one operation
``node``      node and coordinator, over the WebSocket
``worker``    agent and worker, over the Unix socket
``identity``  keys and addresses; ``base58`` and ``merkle`` beside them
"""
