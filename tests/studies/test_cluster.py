"""A real Ray cluster of two nodes, one of which goes away half-way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dap.studies.cluster import run_on_ray
from dap.studies.events import Events
from dap.studies.local import run_locally
from dap.studies.status import status
from small_studies import THREE, TWELVE, contents, leftovers, make_study

ray = pytest.importorskip("ray", reason="needs ray: pip install 'dap[cluster]'")


LONGER = TWELVE.replace("steps: 6", "steps: 120").replace("steps: 8", "steps: 120")


def steps_done_again(folder: Path) -> int:
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return len(steps) - len(set(steps))


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
    study = make_study(tmp_path / "cluster", LONGER)
    second = cluster.add_node(num_cpus=1)
    ended: list[str] = []
    at_work: list[str] = []  # when the node was removed

    def watch(run, outcome, error):
        assert outcome == "done", error
        ended.append(run)

    def remove(run, progress):
        """Half-way, as soon as both nodes are at work."""
        running = [row.run for row in status(study) if row.state == "running" and row.progress]
        if len(ended) >= 4 and len(running) == 2 and not at_work:
            at_work.extend(running)
            cluster.remove_node(second, allow_graceful=False)

    outcomes = run_on_ray(study, list(study.runs), events=Events(ended=watch, progress=remove))
    assert outcomes == dict.fromkeys(study.runs, "done")
    assert sorted(ended) == sorted(study.runs)
    (again,) = (run for run in study.runs if steps_done_again(study.place(run)))
    assert again in at_work  # the lost run, and no other, had to go back
    assert len([node for node in ray.nodes() if node["Alive"]]) == 1
    alone = make_study(tmp_path / "alone", LONGER)
    run_locally(alone, list(alone.runs), workers=2)
    assert contents(study) == contents(alone)
    assert leftovers(study) == []


@pytest.mark.slow
def test_the_command_with_a_cluster_of_its_own(tmp_path):
    study = make_study(tmp_path, THREE)
    command = [Path(sys.executable).with_name("dap"), "study", "run", "study.yaml", "--out", "runs", "--engine", "ray"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3 of 3 runs are done, in runs"
    assert {row.state for row in status(study)} == {"done"}
    wrong = subprocess.run([*command, "--address", "127.0.0.1:1"], cwd=tmp_path, capture_output=True, text=True)
    assert wrong.returncode == 0  # nothing is left to do, so nobody is asked
