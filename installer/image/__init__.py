"""The sandbox image: Python, PyTorch and the trainer, and nothing else.

``build``   ``python -m installer.image.build [--from-host] NAME``
``engine``  a private Docker engine for tests and CI
"""
