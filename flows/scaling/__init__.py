"""From small to large: a law through the losses of a ladder of small models, and what it says of a larger one."""
