"""PodTracker: keeps a run's progress in an annotation of the Kubernetes pod that drives it."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydist.outcome.result import RunProgress
from raydist.spec.text import DETAIL
from raydist.storage.run_record import RunRecord
from raydist.tracking.tracker import Tracker

ANNOTATION = "raydist/progress"
# What a Role has to allow; cluster_configs/kubernetes/progress.yaml is one.
RULE = '{apiGroups: [""], resources: [pods], verbs: [patch]}'
# Kubernetes replaces the token in it while a pod is running.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EVERY_S = 10.0
# Of a request, and of how long the end of a run waits: for a request that has begun, and for the last one.
TIMEOUT_S, END_TIMEOUT_S = 4.0, 8.0
_PAUSE_S = 0.5
_REFUSALS = (http.client.UNAUTHORIZED, http.client.FORBIDDEN, http.client.NOT_FOUND)


@dataclass(frozen=True, kw_only=True)
class Pod:
    """The pod of this process, and where Kubernetes' API server is."""

    name: str
    host: str
    port: str

    @classmethod
    def of_process(cls, environ: Mapping[str, str]) -> Pod | None:
        """Returns it; None outside of Kubernetes, and in a pod without a token."""
        name = environ.get("POD_NAME") or environ.get("HOSTNAME")
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not name or not host or not (SERVICE_ACCOUNT / "token").exists():
            return None
        return cls(name=name, host=host, port=port)

    def annotate(self, value: str) -> http.client.HTTPResponse:
        """Replaces the annotation, unless the answer says otherwise.

        Raises OSError, ValueError or HTTPException without an answer.
        """
        namespace, token = ((SERVICE_ACCOUNT / one).read_text().strip() for one in ("namespace", "token"))
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        context = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
        # Not by a proxy of the environment: the address is one of the cluster's.
        server = http.client.HTTPSConnection(self.host, int(self.port), timeout=TIMEOUT_S, context=context)
        with contextlib.closing(server):
            body = json.dumps({"metadata": {"annotations": {ANNOTATION: value}}})
            server.request("PATCH", f"/api/v1/namespaces/{namespace}/pods/{self.name}", body, headers)
            return server.getresponse()


class PodTracker(Tracker):
    """Tells Kubernetes of one run, in an annotation of its pod."""

    def __init__(self, pod: Pod, *, every_s: float = EVERY_S) -> None:
        super().__init__(thread="raydist-pod")
        self._pod = pod
        self._every_s = every_s

    def finish(self) -> str | None:
        self._is_over = True
        self._wake.set()
        self._thread.join(END_TIMEOUT_S)
        self._is_given_up = True
        if self._problem is None or self._notes:
            return None
        return f"annotation {ANNOTATION} of pod {self._pod.name} lacks the run's end: {self._problem}"

    def _follow(self) -> None:
        told: Mapping[str, Any] = {}
        while not self._is_given_up:
            is_last, record = self._is_over, self._record
            assert record is not None
            progress = progress_of(record)
            if progress != told:
                self._problem = self._send(progress)
                told = progress if self._problem is None else {}
            if is_last and (self._problem is None or self._notes):
                return
            if is_last:
                time.sleep(_PAUSE_S)
            else:
                self._wake.wait(self._every_s)

    def _send(self, progress: Mapping[str, Any]) -> str | None:
        """Returns what went wrong, or None."""
        value = json.dumps({**progress, "at_s": round(time.time())}, separators=(",", ":"))
        try:
            answer = self._pod.annotate(value)
        except (OSError, ValueError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"
        if 200 <= answer.status < 300:
            return None
        problem = f"{answer.status} {answer.reason}"
        if answer.status in _REFUSALS and not self._notes:
            # A detail, as nobody has asked for the annotation.
            self._note(
                f"{DETAIL}Kubernetes refuses annotation {ANNOTATION} of pod {self._pod.name}: {problem}. "
                f"Allow its service account {RULE}, as cluster_configs/kubernetes/progress.yaml does. "
                "If the pod has another name, set POD_NAME from metadata.name"
            )
        return problem


def progress_of(record: RunRecord) -> dict[str, Any]:
    """Returns what the annotation has, by the names of `raydist status --json`, without what is unknown."""
    known = record.progress or RunProgress()
    num_steps, eta_s = known.num_steps, None if record.state.is_terminal else known.eta_s
    facts = {
        "run": record.run,
        "state": record.state.value,
        "steps": record.steps,
        "num_steps": num_steps,
        "fraction": round(min(record.steps / num_steps, 1.0), 4) if num_steps else None,
        "epoch": known.epoch,
        "num_epochs": known.num_epochs,
        "eta_s": None if eta_s is None else round(eta_s),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}
