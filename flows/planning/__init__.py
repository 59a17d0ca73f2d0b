"""What a run will cost before it is paid for: arithmetic of training, and a pilot whose numbers are scaled up.

`arithmetic` and `accelerators` turn tokens, parameters, devices and days into each other; `scaling` says how large a
model the data or the hours can feed; `memory` what a device must hold. `pilot` takes a small share of every source
down the road for real, `estimation` and `duplicates` say what that means for the whole, `costing` puts all of it into
one plan.
"""
