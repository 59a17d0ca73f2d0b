"""Where a training step's time goes: `python -m model.profile run.json`.

Every operation of a few real steps is timed and counted (FLOPs of matrix products, bytes read and written) and belongs
to a part of the network: embedding, norms, attention, MLP, head and loss, each forward and backward; clipping,
optimizer, loader; what is left is the time between operations. Beside it is what the machine could do, measured at the
start: the roofline (Williams, Waterman and Patterson 2009).

`measuring` runs the steps. `parts` says which part runs, `recording` times operations, `work` counts them, `costs` adds
them up to a `step`, `machine` measures the roofline. `findings` names what is wrong, `telling` and `picture` show it.
"""
