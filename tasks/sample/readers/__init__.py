"""Readers of formats: bytes of a file become records, and damaged ones the reason why they cannot be read."""
