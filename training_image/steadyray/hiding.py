"""Takes the values of secret variables out of what the job writes down. Standard library only: it is shipped
next to ray_train.py where steadyray is not installed.
"""

from __future__ import annotations

import json
import os

from .contract import ENV_SECRETS  # relative: the folder it is shipped in has another name

HIDDEN = "[redacted]"


def hide(text: str) -> str:
    """`text` without the values of the variables that STEADYRAY_SECRETS names, also as JSON escapes them."""
    names = os.environ.get(ENV_SECRETS, "").split(",")
    values = {value for name in names if name and (value := os.environ.get(name))}
    for value in sorted(values | {json.dumps(v)[1:-1] for v in values}, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text
