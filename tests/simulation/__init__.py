"""The real code in simulated worlds: seeded time, network, deaths, and rivals.

There are two kinds of worlds: `stack` has journal, database and queue together, and `world` the
journal alone, of which many more fit into a second. Run ``python -m tests.simulation --seeds
5000``, or one world: ``--seed 7 --trace``.
"""
