"""The headless provider agent: holds leases, runs their workers in a sandbox, carries what they say. Never imports torch or Qt.

``cli``       the command ``cottage node``: run, status, limits, earnings, selftest
``daemon``    puts the parts together and ends them in order
``session``   the WebSocket to the coordinator: hello, heartbeats, reconnects
``tasks``     the leases held: files, sandbox, worker, end
``bridge``    the Unix socket of one worker, its only door
``peers``     which payload belongs to which worker here, and to which node there
``plans``     who may send what to whom, purely
``network``   what it tells of its line and links; ``limits`` and ``usage``: how much of the line jobs may use, and have used
``reports``   what the coordinator has not acknowledged yet
``artifacts`` downloads, the disk cache, uploads
``sandbox``   Docker, or (demo and development) a plain process
"""
