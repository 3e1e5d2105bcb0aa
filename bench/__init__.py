"""The figures that Tidings is held to. `python -m bench` measures them all; `python -m bench --help` says more."""
