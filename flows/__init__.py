"""What happens in which order: the only room that knows all the others. `pretrain.py` reads as the road."""
