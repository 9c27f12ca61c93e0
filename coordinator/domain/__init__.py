"""What is decided: pure functions over immutable values. No I/O, no clock, no chance; those come in as arguments.

``job``        the lifecycle table
``lease``      who holds which seat, until when
``pricing``    operations, price, pots and shares
``rounds/``    one outer round as a fold over what its members report (``round``), and rounds in a row (``run``)
``placement/`` stages x replicas, the cut of the layers, which node sits where
``audits/``    the draw (``sampling``), the life of an audit (``trust``), consequences (``penalty``)
``arrays/``    which element runs where, and whose results hold
"""
