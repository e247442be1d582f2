"""`mmapds.executors.Submitit`: jobs of submitit as futures, whatever becomes of them."""

import os
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

import mmapds
from mmapds import executors
from tests.support.commands import run
from tests.support.indexes import built


def test_jobs_of_submitit_become_futures(tmp_path):
    class Job:
        def __init__(self, future):
            self.done, self.result, self.cancel = future.done, future.result, future.cancel

    class AutoExecutor:
        def __init__(self):
            self.threads = ThreadPoolExecutor(2)

        def submit(self, function, *arguments):
            return Job(self.threads.submit(function, *arguments))

    corpus = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for number, path in enumerate(corpus):
        path.write_text(f'{{"text": "{number}"}}\n' * (9 * number))
    out, options = tmp_path / "all.mmx", {"length": "chars(text)"}
    direct = built(corpus, out, **options)
    executor = executors.Submitit(AutoExecutor())
    assert (
        mmapds.build(corpus, out=tmp_path / "all.mmx", executor=executor, length="chars(text)").read_bytes() == direct
    )


def test_a_job_of_submitit_that_cannot_be_asked_hides_no_other():
    class Job:
        def __init__(self, answer):
            self.done = self.result = answer

    class AutoExecutor:
        def submit(self, function, *arguments):
            return Job(lambda: function(*arguments))

    executor = executors.Submitit(AutoExecutor())
    lost = executor.submit(os.stat, "/no/such/file")
    assert isinstance(lost.exception(60), FileNotFoundError)
    cancelled = executor.submit(bool)  # never done
    assert cancelled.cancel()
    assert executor.submit(int, "7").result(60) == 7


def test_a_signal_in_submit_of_submitit_leaves_no_future_waiting():
    code = """
        import itertools, sys
        from mmapds import executors

        class Job:
            done = lambda self: True
            result = lambda self: 7
            cancel = lambda self: None

        class AutoExecutor:
            submit = lambda self, function, *arguments: Job()

        class Stop(Exception):
            pass

        executor = executors.Submitit(AutoExecutor())
        executor.submit(int).result(60)
        for number in itertools.count():
            left = number

            def trace(frame, event, argument):
                global left
                if left < 0:
                    return None
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise Stop
                return trace

            sys.settrace(trace)
            try:
                executor.submit(int)
            except Stop:
                pass
            else:
                break
            finally:
                sys.settrace(None)
            assert executor.submit(int).result(60) == 7
        assert number > 3
    """
    done = run("-c", dedent(code))
    assert done.returncode == 0, done.stderr
