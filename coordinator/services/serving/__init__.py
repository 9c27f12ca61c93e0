"""Finished models that answer programs and people.

engines      a process for each model that is asked, kept a while
deployments  what a job that answers does next: seats, pay, the end
seating      who holds which part of the model
adapters     what a deployment answers with beside its model
homes        which replica answers which request, and what each has done
presence     which seats are there, asked while an answer waits
answers      what is known of replicas and of answers under way
sketches     what stages say crossed between them
checks       answers that are drawn again
proofs       those that were found wrong are proven so, or cost no stake
"""
