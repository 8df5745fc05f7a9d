"""The secrets that a job was given, which nothing that the run shows or stores may have."""

from __future__ import annotations

from raydist.spec.job import JobSpec
from raydist.spec.settings.secrecy import is_secret_variable
from raydist.storage.files.redaction import Secrets


def secrets_of(job: JobSpec) -> Secrets:
    """Returns what `Secrets.hide` takes out of the texts of this job's run."""
    commands = [list(role.command) for role in job.roles.values()]
    given = {"commands": commands, "params": job.params, "args": job.args, "storage": job.storage}
    hidden = [value for name, value in job.env.items() if is_secret_variable(name, value)]
    places = {"mlflow": job.mlflow, "on_end": job.on_end, "runtime_env": job.runtime_env}
    return Secrets.of({**given, **places, "secrets": hidden})
