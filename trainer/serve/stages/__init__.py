"""A model whose layers lie on several machines: one stage of it, which answers together with its neighbours.

engine       one stage's thread: what comes from neighbours and the coordinator goes in, passes and reports go out
lead         of the first stage: requests become passes, and what was drawn becomes answers
texts        requests for embeddings, a text at a time
ngrams       tokens that an answer may go on with, looked up in itself
draft_model  the same of a small model, at the first stage
drafting     which of both goes out, and how many tokens
draws        of the last stage: the next tokens, by each request's own seed
layers       what every stage does with a pass
share        the stage's layers in memory
pages        keys and values, in pages
attention    of a pass over those pages
passes       what goes between stages
order        payloads in order, of the epoch that is on
sketches     what crossed a boundary, in few numbers
blame        whose fault a wrong answer is, by sketches
"""
