"""What moves the services: messages of nodes, the clock, blocks of the ledger, bonds on the ledger."""
