"""`python -m mxfp4_ops`: the command line where the script `mxfp4-ops` is not on the path."""

from .cli import app

app(prog_name="mxfp4-ops")
