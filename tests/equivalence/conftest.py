"""Scripts of ranks are started by the tests, and are none themselves."""

collect_ignore = ["mesh_loop.py"]
