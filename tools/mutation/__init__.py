"""What the tests would notice: random bugs are planted one by one, and judged by the simulation and the unit tests.

    python -m tools.mutation --count 100 --seed 1 --results mutants.jsonl --table

Each mutant (a condition negated, a comparison flipped, a call or an assignment dropped, ``and`` for ``or``, a number moved) is
given to simulated histories for 20 s of processor time, when these find nothing to the unit tests that execute a line of it,
and then to histories for another minute.  When the first histories do not execute the mutant the simulation is not asked any
further.  What none notices is listed: it needs a test, or a reason why it makes no difference.  The results are appended,
and a run that is started again goes on.

``drawing.py`` draws the mutants, ``executed.py`` says which lines a unit test executes, ``warm.py`` forks a process per check,
``judges.py`` has the checks, ``__main__.py`` the command.
"""
