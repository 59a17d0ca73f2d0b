"""Convert networks to and from `transformers`: settings and weights of GPT-2, LLaMA, NeoX, OPT, BERT and T5."""
