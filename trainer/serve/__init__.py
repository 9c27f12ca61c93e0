"""A finished model that answers, as one process with several requests at a time.

engine       the model, and the batches in which the requests are computed
loading      the model in memory
adapters     those of several jobs beside the model
requests     requests as tokens
sampling     which token is next: by each request's own temperature and seed
grammar      answers in the form of a JSON schema
answer_text  what the tokens of an answer say, and where they end it
texts        tokens as text in pieces, up to a stop
calls        of functions, among what is said
embeddings   texts as vectors
checking     whether the model says what somebody says that it says
loop         commands in, reports out
stages/      one stage of a model that several machines hold together
"""
