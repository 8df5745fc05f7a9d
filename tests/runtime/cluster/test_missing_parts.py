"""What raydist does with a Ray that lacks private parts, and what it says of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# In a process of its own, as it spoils Ray.
_CODE = """
import json
import ray
from ray import _raylet
from ray._private import auto_init_hook, services, state, worker
del _raylet.AuthenticationTokenLoader, services._find_address_from_flag, services.find_gcs_addresses
del auto_init_hook.enable_auto_connect, worker.print_to_stdstream, state.available_resources_per_node
from raydist.runtime.cluster import ray_internals as internals
internals.reload_authentication()
internals.silence_raylet()()
internals.forbid_auto_init()
print(json.dumps({
    "missing": internals.missing_parts(),
    "token": internals.has_token(),
    "is_node": internals.has_node_here("127.0.0.1:1", timeout_s=1.0),
    "addresses": internals.local_gcs_addresses(),
}))
"""


def test_ray_without_private_parts_is_used_without_them_and_says_what_is_lost() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    names = ("AuthenticationTokenLoader", "_find_address_from_flag", "find_gcs_addresses")
    for name in (*names, "enable_auto_connect", "print_to_stdstream", "available_resources_per_node"):
        assert [one for one in found["missing"] if f"{name}: " in one] != [], name
    assert (found["token"], found["is_node"], found["addresses"]) == (False, True, [])


_WITHOUT_LABELS = """
import dataclasses
import ray
ray.util.placement_group = lambda bundles, strategy="PACK": None
from raydist.errors import UnsupportedError
from raydist.runtime.cluster.placement import check_placeable
from raydist.spec.job import EntryPoint, JobSpec
job = JobSpec(name="r", entry_point=EntryPoint(function="train", file="job.py"))
check_placeable(job)
for changes in ({"label_selector": {"zone": "a"}}, {"standby": 1}):
    try:
        check_placeable(dataclasses.replace(job, **changes))
    except UnsupportedError as error:
        print(error)
"""


def test_labels_and_standbys_are_refused_by_a_ray_that_does_not_place_by_labels() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_LABELS], capture_output=True, text=True, check=True)
    assert "cannot place tasks by labels; install Ray 2.47 or later, or use --resources" in done.stdout
    assert "standby is 1, but Ray " in done.stdout
