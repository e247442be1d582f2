"""All that functions which build indexes import late, so that commands start fast: loaded at once.

Programs that use these functions load this module first, with the lock of imports: a child that another thread forks
beside their first use would wait for ever for a module that was being imported.
"""

import csv  # noqa: F401
import multiprocessing.connection  # noqa: F401
import pathlib  # noqa: F401
import tempfile  # noqa: F401

import numpy.lib.format
import numpy.ma  # noqa: F401 - as np.unique does
import orjson  # noqa: F401
from braceexpand import braceexpand  # noqa: F401

from ..compression import plain  # noqa: F401
from ..formats import unmeasured  # noqa: F401
from ..storage import gone, runs  # noqa: F401
from . import build, distribute, inspect, left_out, marks, merge, saved, together, verify  # noqa: F401
