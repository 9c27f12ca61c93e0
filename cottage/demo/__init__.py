"""A whole network on one PC: ledger, coordinator, provider nodes, a job, and what came of it.

``main``        the command
``options``     what was asked for
``processes``   starting roles, and surely ending them
``network``     the roles together
``corpus``      the text
``run``         the course of events
``faults``      kill -9 on purpose
``lying_node``  an agent whose worker is ``lying_worker``, which cheats
``screen``      what is seen meanwhile
``report``      what is said at the end
"""
