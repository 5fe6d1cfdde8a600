"""Laws of every public function, on random and hostile input.

Each check plays some cases from a seed and returns how many; it raises an AssertionError that holds the case.
`test_invariants.py` plays a few of each, the long command (`scripts/invariants`) plays them for as long as it
is given, each round in a process of its own.
"""
