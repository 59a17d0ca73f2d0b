"""Search: many trainings of one recipe under other settings, to find better ones.

A trial is an ordinary run of the road with settings of its own, so that all data are reused by identity. Settings are
proposed by the tree-structured Parzen estimator (Bergstra et al. 2011, by Optuna) or at random (Bergstra and Bengio
2012). Asynchronous successive halving (Li et al. 2020, ASHA) lets only the better third of trials go on at each rung;
the others stay paused at a checkpoint.
"""
