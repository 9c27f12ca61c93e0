"""The operator's door: ``/api/v1/admin`` and the pages under ``/admin``."""
