"""The standing service of a root: a Prefect server with its UI, a worker, the deployments, in one command.

`processes.py` starts, finds and ends processes that outlive the command; `files.py` says where everything lies;
`starting.py` and `stopping.py` are `bessemer serve start` and `bessemer serve stop`. Everything is under
`ROOT/service/`.
"""
