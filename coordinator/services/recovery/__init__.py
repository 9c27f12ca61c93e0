"""After a backup was restored: what nodes keep of jobs' records, what the ledger shows, and how jobs go on from both."""
