"""Tasks shared among threads: results do not depend on who runs what, and errors arrive."""

import os
import threading
import time

import numpy as np
import pytest

import groupsparse as gs
from groupsparse.kernels import pool


@pytest.fixture
def threads(monkeypatch):
    return lambda count: monkeypatch.setenv("GROUPSPARSE_NUM_THREADS", str(count))


def test_results_come_in_order_from_several_threads(threads):
    threads(3)
    seen = set()

    def task(i):
        seen.add(threading.get_ident())
        time.sleep(0.01)
        return i

    assert pool.run([lambda i=i: task(i) for i in range(12)]) == list(range(12))
    assert 1 < len(seen) <= 3


def test_an_error_of_any_task_is_raised_and_the_pool_lives_on(threads):
    threads(2)

    def fail():
        raise ArithmeticError("of a task")

    def wait():
        time.sleep(0.01)

    for position in (0, 5):
        tasks = [wait] * 6
        tasks[position] = fail
        with pytest.raises(ArithmeticError, match="of a task"):
            pool.run(tasks)
    assert pool.run([lambda: 1, lambda: 2]) == [1, 2]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", [0.5, 0.99])
def test_the_same_bits_on_any_number_of_cores(threads, axis, dtype, target):
    array = np.random.default_rng(0).standard_normal((1500, 1300)).astype(dtype)
    found = []
    for count in (1, 2, 5):
        threads(count)
        p = gs.solve(array, target, axis=axis)
        assert p.kernel == "numba"
        found.append((p.value.tobytes(), p.multiplier, p.primal, p.dual, p.passes))
    assert found[0] == found[1] == found[2]


def test_several_threads_may_project_at_once(threads):
    threads(2)
    array = np.random.default_rng(0).standard_normal((1200, 1000)).astype("float32")
    alone = gs.project(array, 0.9)
    answers = [None] * 4

    def work(i):
        answers[i] = gs.project(array, 0.9)

    callers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(np.array_equal(answer, alone) for answer in answers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_starts_its_own_threads(threads):
    threads(2)
    assert pool.run([lambda: 1] * 4) == [1] * 4
    child = os.fork()
    if child == 0:
        os._exit(0 if pool.run([lambda: 2] * 4) == [2] * 4 else 1)
    assert os.waitpid(child, 0)[1] == 0
