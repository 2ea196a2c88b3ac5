"""Mutation tests: random bugs are planted one by one, and judged by the simulation and the unit tests.

    python -m tools.mutation --count 100 --seed 1 --results mutants.jsonl --table

Each mutant (a condition negated, a comparison flipped, a call or an assignment dropped, ``and`` for ``or``, a number changed)
runs in 24 simulated histories, with the faults of every flag in turn. If these find nothing, the unit tests that execute a line
of the mutant run, and then 72 more histories. If the first histories do not execute the mutant, the simulation stops. Mutants
that nothing detects are listed: each needs a test, or a reason why it makes no difference. The results are appended, and a
restarted run continues.

``drawing.py`` draws the mutants, ``executed.py`` finds the lines that a unit test executes, ``warm.py`` forks a process per
check, ``judges.py`` has the checks, ``__main__.py`` the command.
"""
