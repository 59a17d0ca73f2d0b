"""Convert networks to and from `transformers`: settings and weights of the families in `registry.py`."""
