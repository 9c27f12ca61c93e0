"""The on-chain market program: escrow, settlement and stake.

The C sources stand beside this file, built twice: ``market.v3.so`` for clusters with sBPF version 3 and
``market.v0.so`` for older ones. ``python -m ledger.program.build`` rebuilds both, byte for byte.
"""
