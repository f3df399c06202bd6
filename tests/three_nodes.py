"""A Ray cluster of three nodes with one CPU each. A line on standard input kills one of them; the end stops all."""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
sys.stdout.write(f"{cluster.address}\n")
sys.stdout.flush()
for _ in sys.stdin:
    cluster.remove_node(nodes.pop(), allow_graceful=False)
cluster.shutdown()
