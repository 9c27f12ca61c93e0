"""The embedded ledger: a Solana JSON-RPC server on one PC, over the virtual machine inside ``solders``.

``python -m ledger.local --port 0 --db ledger.db --ready-file url.txt`` serves it.

store    what survives a crash: accounts, transactions and their index, in SQLite
chain    the virtual machine with real clocks, blockhashes and no replay
genesis  first start: token, program, treasury and terms
encoding JSON shapes of accounts and transactions
rpc      the methods
server   HTTP in front of them
"""
