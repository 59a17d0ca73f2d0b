"""The long-running service of a root: a Prefect server with its UI, a worker, a keeper and the deployments.

`server.py` starts and stops it (`bessemer serve start`, `bessemer serve stop`), `processes.py` handles processes that
outlive the command, `files.py` says where everything is: all under `ROOT/service/`. `local_server.py` is a private
server for a single run.
"""
