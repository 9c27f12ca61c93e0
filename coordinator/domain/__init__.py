"""What is decided: pure functions over immutable values. No I/O, no clock, no chance; those come in as arguments.

``job``        the lifecycle table
``lease``      who holds which seat, until when
``round``      one outer round as a fold over what its members report
``run``        rounds in a row: who takes part, from which state, when a round is done again
``placement``  stages x replicas, the cut of the layers, which node sits where
``pricing``    operations, price, pots and shares
``trust``      the audit draw, the life of an audit, consequences
"""
