"""How money and facts are kept: integer amounts, an on-chain market program, an embedded Solana ledger.

``ledger.client.Ledger`` is the door for everybody else. It speaks JSON-RPC to a Solana cluster or to
``python -m ledger.local``, which serves the same protocol from one PC; only the URL differs.
"""
