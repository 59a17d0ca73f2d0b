"""Profile a training step: `bessemer model profile run.json`.

Every operation of a few real steps is timed and counted (FLOPs of matrix products, bytes read and written) and assigned
to a part of the network: embedding, norms, attention, MLP, head and loss, each forward and backward; clipping,
optimizer, loader. The rest is the time between operations. It is compared with what the machine can do, measured at the
start: the roofline (Williams, Waterman and Patterson 2009).

`step.py` runs the steps, `modules.py` times and counts their operations by part, `roofline.py` measures the machine,
and `report.py` finds problems and formats the result.
"""
