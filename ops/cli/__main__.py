"""`python -m ops.cli`, for processes that must run with this very Python."""

from ops.cli import main

main()
