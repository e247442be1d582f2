"""What a job's process runs: `python -m bench.rivals.job '{"function": "module:name", ...}'`."""

import json
import resource
import sys
from importlib import import_module
from pathlib import Path


def call(function, arguments):
    """Call `module:name`."""
    module, name = function.split(":")
    return getattr(import_module(module), name)(**arguments)


def rival(contest, name):
    """Return the module of a rival: one of a contest's folder, or any other by its whole name."""
    return import_module(name if "." in name else f"bench.rivals.{contest}.{name}")


def is_out_of_memory(error):
    """Whether an allocation failed; torch raises RuntimeError then."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def main():
    """Call the function under the limit of memory, and write what it returns."""
    job = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (job["memory"], job["memory"]))
    try:
        found = call(job["function"], job["arguments"])
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        found = {"is_out_of_memory": True}
    Path(job["answer"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
