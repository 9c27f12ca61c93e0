"""A whole network on one PC: ledger, coordinator, provider nodes, a job, and what came of it.

``main`` the command; ``options`` what was asked for; ``processes`` starting and surely ending the roles; ``network``
the roles together; ``corpus`` the text; ``run`` the course of events; ``screen`` what is seen meanwhile; ``report`` what is said at the end.
"""
