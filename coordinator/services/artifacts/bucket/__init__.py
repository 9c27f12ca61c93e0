"""Artifacts in a bucket of any S3-compatible service."""
