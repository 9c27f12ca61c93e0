"""Money on the ledger: escrows, promises, settlements, stakes, and the outbox that carries them."""
