"""Mixing weights from small models: shares of the sources that many proxies of one recipe say are best.

RegMix (Liu et al. 2024): proxies are trained on random mixtures, the logarithm of each source's held-out loss is fitted
as a linear function of the shares, and the shares with the lowest predicted mean are taken. Only `chunk.weights`
differs between proxies, so that all stages before it are built once. Unlike there, no share may fall to nothing, and
none may ask a source for more epochs than the recipe allows: both bounds hold within the minimisation.
"""
