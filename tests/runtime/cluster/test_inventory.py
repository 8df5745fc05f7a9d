from __future__ import annotations

import json

import pytest

from raydist.runtime.cluster.connection import Connection
from raydist.runtime.cluster.inventory import probe_inventory
from raydist.runtime.cluster.ray_internals import names_node_types


@pytest.mark.slow
def test_inventory_is_what_ray_has(ray_cluster: Connection) -> None:
    inventory = probe_inventory(ray_cluster, environ={"TPU_NAME": "pod"})
    (host,) = inventory.hosts
    assert (host.num_cpus, host.num_gpus, host.num_tpus) == (4.0, 0, 0.0)
    assert len(str(host.node_id)) == 56
    assert host.memory_bytes > 1 << 20
    assert host.custom == {}
    assert host.labels.get("ray.io/node-id", host.node_id) == host.node_id  # before Ray 2.47 there are none
    assert (inventory.is_embedded, inventory.can_grow) == (True, False)
    assert (inventory.source, inventory.tpu_name) == ("embedded Ray", "pod")


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"node_type_mapping": {"8f84": "node_8f84", "11aa": "node_11aa"}}, False),
        ({"node_type_mapping": {"8f84": "ray.head.default"}}, True),
        ({"node_type_mapping": None}, False),
        (None, False),
    ],
    ids=["ray start alone", "cluster with node types", "no types yet", "no report yet"],
)
def test_autoscaler_is_known_by_its_node_types(report: object, expected: bool) -> None:
    assert names_node_types(json.dumps({"autoscaler_report": report}).encode()) is expected
