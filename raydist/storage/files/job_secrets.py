"""The secrets that a job was given, which nothing that the run shows or stores may have."""

from __future__ import annotations

from raydist.spec.environment.secrecy import looks_secret
from raydist.spec.job import JobSpec
from raydist.storage.files.redaction import Secrets


def secrets_of(job: JobSpec) -> Secrets:
    """Returns what `Secrets.hide` takes out of the texts of this job's run."""
    commands = [list(role.command) for role in job.roles.values()]
    given = {"commands": commands, "params": job.params, "args": job.args, "storage": job.storage}
    hidden = [value for name, value in job.env.items() if looks_secret(name, value)]
    return Secrets.of({**given, "mlflow": job.mlflow, "on_end": job.on_end, "secrets": hidden})
