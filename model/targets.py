"""What stands in place of a target that is not predicted."""

NO_LOSS = -100
"""What PyTorch's cross entropy ignores."""
