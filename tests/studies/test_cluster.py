"""A real Ray cluster of two nodes, one of which goes away half-way."""

import pytest

from dap.studies.cluster import run_on_ray
from dap.studies.events import Events
from dap.studies.local import run_locally
from small_studies import contents, leftovers, make_study

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ray's own
def test_a_node_that_is_removed_half_way(cluster, tmp_path):
    study = make_study(tmp_path / "cluster")
    second = cluster.add_node(num_cpus=1)
    ended: list[str] = []

    def watch(run, outcome, error):
        assert outcome == "done", error
        ended.append(run)
        if len(ended) == 4:
            cluster.remove_node(second, allow_graceful=False)

    outcomes = run_on_ray(study, list(study.runs), events=Events(ended=watch))
    assert outcomes == dict.fromkeys(study.runs, "done")
    assert len([node for node in ray.nodes() if node["Alive"]]) == 1
    alone = make_study(tmp_path / "alone")
    run_locally(alone, list(alone.runs), workers=2)
    assert contents(study) == contents(alone)
    assert leftovers(study) == []
