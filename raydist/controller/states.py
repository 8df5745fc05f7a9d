"""RunState, under the name that the controller's modules import it by."""

from __future__ import annotations

from raydist.spec.run_state import RunState as RunState
