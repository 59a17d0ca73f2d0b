"""Training whose bits depend on no processor, number of ranks or micro-batch: `train.numerics = "portable"`."""
