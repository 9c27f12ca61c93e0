"""What whoever runs the coordinator sees and orders: nodes, jobs of all accounts, the outbox, room for files."""
