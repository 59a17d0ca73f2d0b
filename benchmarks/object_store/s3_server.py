"""moto's S3 server, in memory: `s3_server.py PORT` on the loopback interface.

`python -m moto.server` finds out for every request which of AWS's services it is for, and logs it; that takes a third
of its time."""

import logging
import sys

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = create_backend_app("s3")
    run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True, request_handler=MotoRequestHandler)
