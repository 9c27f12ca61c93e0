"""A finished model that answers, as one process with several requests at a time.

engine     the model, and the batches in which the requests are computed
sampling   which token is next: by each request's own temperature and seed
grammar    answers in the form of a JSON schema
calls      of functions, among what is said
texts      tokens as text in pieces, up to a stop
loop       commands in, reports out
"""
