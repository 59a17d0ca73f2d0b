"""A training's numbers for programs that track experiments: TensorBoard, and Weights & Biases without its network.

`series.py` reads them from a run's artifacts, the other files write them. Nothing of this runs while a model trains:
what is exported is what the artifacts hold, so an export can be made again, and of any old run.
"""
