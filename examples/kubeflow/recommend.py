"""Recommends a feasible number of nodes for a TrainJob: python recommend.py FOLDER [PORT].

Its annotation `isobatch/recipe: NAME` names FOLDER/NAME.toml; `numNodes` is the most that it may get, and
`resourcesPerNode.limits` or `numProcPerNode` has the GPUs of a node.
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import isobatch as ib

MAX_BYTES, MAX_NODES, DONE = 1 << 20, 1024, "trainer.kubeflow.org/autoconf-plugin-done"


def recommend(job, folder):
    """Returns the nodes, all feasible numbers of nodes, the plan's variables, and the patch."""
    try:
        name = job["metadata"]["annotations"]["isobatch/recipe"]
        trainer = job["spec"].get("trainer") or {}
        limits = (trainer.get("resourcesPerNode") or {}).get("limits") or {}
        gpus = [number for name, number in limits.items() if name.endswith("/gpu")]  # of any maker
        each = gpus[0] if gpus else trainer.get("numProcPerNode")
        most = trainer.get("numNodes", MAX_NODES)
    except (KeyError, TypeError, AttributeError) as error:
        raise ib.InputError(f"expected a TrainJob with the annotation isobatch/recipe: {error!r}") from None
    if not re.fullmatch(r"\w[\w.-]*", str(name)):
        raise ib.InputError(f"isobatch/recipe must be a name, got {name!r:.60}")
    if each in (None, "auto", "gpu", "cpu"):
        raise ib.InputError("the GPUs of a node are not said: set resourcesPerNode.limits or numProcPerNode")
    if not all(re.fullmatch(r"[1-9]\d{0,3}", str(number)) for number in (each, most)):
        raise ib.InputError(f"nodes and their GPUs must be whole numbers, got {most!r:.60} and {each!r:.60}")
    each, most = int(each), min(int(most), MAX_NODES)
    recipe, node = ib.Recipe.load(f"{folder}/{name}.toml"), ib.Cluster(gpus_per_node=each)
    counts = ib.counts(recipe, range(each, most * each + 1, each), cluster=node)
    if not counts.working:
        raise ib.InputError(f"{name} works on no number of nodes up to {most} of {each} GPUs")
    env = counts.plan_at(counts.working[-1]).to("kubeflow").settings["spec"]["trainer"]["env"]
    nodes = [number // each for number in counts.working]
    patch = {"metadata": {"annotations": {DONE: "yes"}}, "spec": {"trainer": {"numNodes": nodes[-1]}}}
    return {"numNodes": nodes[-1], "feasible": nodes, "env": env, "patch": patch}


class Handler(BaseHTTPRequestHandler):
    timeout = 10  # seconds that a client may be silent

    def do_POST(self):
        try:
            length = int(self.headers.get("Content-Length", 0))
            if not 0 < length <= MAX_BYTES:
                raise ib.InputError(f"Content-Length must be from 1 to {MAX_BYTES}, got {length}")
            code, answer = 200, recommend(json.loads(self.rfile.read(length)), sys.argv[1])
        except (ValueError, RecursionError) as error:  # an InputError is a ValueError
            code, answer = 400, {"error": str(error)[:1000]}
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int((*sys.argv, 8000)[2])), Handler)
    print(f"listening on port {server.server_port}", flush=True)
    server.serve_forever()
