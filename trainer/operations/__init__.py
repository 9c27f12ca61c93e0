"""What a step does, operation by operation: recorded under torch's dispatcher, hashed, and re-run one at a time.

``tracer``    records every operation that computes something, forward, backward and optimizer, in order
``memory``    which operation wrote which bytes
``effects``   what an operation changes
``spelling``  names and arguments as text
``inputs``    the file with which one operation can be re-run
``judge``     re-running it, from bytes that nobody needs to trust

Views are no operations: they say only where a later operation reads. Names are those of the dispatcher (``aten.mm.default``), and

* ``cottage.given``: bytes that no recorded operation wrote: parameters, moments, tokens, payloads, tables, constants;
* ``cottage.encode``, ``cottage.decode``: between tensors and payloads (``trainer.codecs``);
* ``cottage.state``: the digest of parameters and moments; ``cottage.result``, the last record: state, payloads sent, loss.

What Python computes with single numbers is in the arguments of operations. Equal programs on machines of one environment
class (``trainer.audit.environment``) record the same bytes.
"""
