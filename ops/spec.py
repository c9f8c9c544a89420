"""What was asked of a run: `spec.json`. Made by `ops.submission`, read by `ops.supervise`.

It changes only while the run is finished, by a person who resumes it; `name` and `created` never do.
"""

from __future__ import annotations

import hashlib

from pydantic import BaseModel, ConfigDict, Field
from steadyray.contract import CODE, SCHEMA

from ops.policy.model import Budgets, Mode


class RunSpec(BaseModel):
    """Everything that a supervisor on another machine needs to go on with the run, without secrets."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_: int = Field(SCHEMA, alias="schema", serialization_alias="schema")
    name: str
    entrypoint: tuple[str, ...] = Field(description="command and arguments, run in the code's folder")
    recipe: str | None = Field(None, description="file name of the recipe; None for a command")
    code_hash: str = Field(description="sha256 of code/<hash>.zip")
    cluster: str = Field("local", description="name of the cluster, or its dashboard's http address")
    token_file: str = Field("", description="where the token of a cluster named by address is read")
    storage: str = Field("", description="URL under which the run directory lies; empty for a folder")
    env: dict[str, str] = Field(default_factory=dict)
    secret_env: tuple[str, ...] = Field(
        (), description="names only; values come from the supervisor's environment"
    )
    restart_ok: bool = False
    driver_cpus: float = 0.0
    driver_resources: dict[str, float] = Field(default_factory=dict)
    budgets: Budgets = Budgets()
    mode: Mode = Field(Mode.ACT, description="observe: every decision is taken and noted, none is done")
    created: float = Field(0.0, description="wall clock seconds")

    @property
    def code_path(self) -> str:
        """Where in the run directory the zip of its code lies."""
        return f"{CODE}/{self.code_hash}.zip"


def submission_id(spec: RunSpec, run_url: str, attempt: int) -> str:
    """Another for every other run on the cluster. For a new attempt; one that exists has it in its lease.

    The hash keeps apart equal names in two runs folders, and a run from one of the same name whose folder
    was deleted: the cluster still knows the old one's job, and would answer with its end.
    """
    which = f"{run_url}|{spec.created!r}"
    return f"{spec.name}-{hashlib.sha256(which.encode()).hexdigest()[:8]}-{attempt}"
