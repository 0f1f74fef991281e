"""The journal's real code in simulated worlds: seeded time, network, deaths, and rivals.

Run ``python -m tests.simulation --seeds 2000``, or one world: ``--seed 7 --trace``.
"""
