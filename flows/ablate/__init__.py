"""Ablation: what each of a list of changes to a recipe does, one at a time, over several seeds.

Every (change, seed) is an ordinary run of the road, so that stages which a change does not touch are reused. A change
is laid beside the base seed by seed, which takes what both owe to a lucky start out of the difference, and over the
items of a benchmark one by one. `components` takes heads and layers from a trained network instead.
"""
