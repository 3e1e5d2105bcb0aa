"""The figures that Tidings is held to. `python -m bench` measures them all; `python -m bench --help` says more."""

import base64
import os

# Of every database here: what is measured makes keys beside the servers that read them.
os.environ.setdefault("TIDINGS_SECRETS__MASTER_KEY", base64.b64encode(os.urandom(32)).decode())
