"""Make Ray's drivers and agents on a local node connect to that node, and not to the head.

On one machine Ray looks for "a raylet on this host" and takes the head's when it sees several. Then a driver
that runs on a worker node hangs on the head's raylet and dies with the head, and a worker's agent looks for
job logs in the head's folder (both seen with Ray 2.60). `local_nodes.node_environment` puts this folder on
PYTHONPATH of a node's processes; Python imports `sitecustomize` from it at start. Standard library only: it
runs in users' interpreters too, and must cost nothing where Ray is not imported.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

MODULE = "ray._private.services"
NODE_FOLDER = "RAY_TMPDIR"
GCS_ADDRESS = "STEADYRAY_GCS_ADDRESS"


def _prefer_own_node(services: Any) -> None:
    original = services.get_node_to_connect_for_driver

    def get_node_to_connect_for_driver(
        gcs_client: Any, node_ip_address: Any = None, node_name: Any = None, temp_dir: Any = None, **more: Any
    ) -> Any:
        unsaid = node_ip_address is None and node_name is None and temp_dir is None
        if unsaid and gcs_client.address == os.environ.get(GCS_ADDRESS):
            temp_dir = os.environ.get(NODE_FOLDER)
        return original(gcs_client, node_ip_address, node_name, temp_dir, **more)

    services.get_node_to_connect_for_driver = get_node_to_connect_for_driver


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds one module as Python would, and has the one function changed when it has been loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader: Any = spec and spec.loader
        if loader:
            load = loader.exec_module

            def load_and_change(module: Any) -> None:
                load(module)
                _prefer_own_node(module)

            loader.exec_module = load_and_change
        return spec


def _run_shadowed_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get(GCS_ADDRESS):
    sys.meta_path.insert(0, _AfterImport())
_run_shadowed_sitecustomize()
