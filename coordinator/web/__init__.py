"""The coordinator's doors: the REST interface, the nodes' socket, pages and sign-in. What they answer, services decide."""
