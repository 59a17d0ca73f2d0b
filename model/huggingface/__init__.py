"""Where each weight of a published network stands in ours: GPT-2, LLaMA, BERT and T5 by their published names."""
