"""Reading what submitters and peers send: inputs, JSON, tensors."""
