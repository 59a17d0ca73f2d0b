"""The commands of `bessemer`, a file for each kind of work; heavy imports stay inside the functions."""
