"""Array jobs: a container runs once for each of many inputs, and results are made sure of by several owners.

``array_jobs`` brings a job as far as it goes; ``open_arrays`` has what is known of it in memory; ``element_votes`` weighs what
nodes say; ``array_staffing`` gives and takes nodes; ``element_results`` keeps what comes back; ``array_offers`` says what it
costs; ``array_views`` what people see.
"""
