"""In front of PYTHONPATH: lm_eval's command knows the tasks of --include_path alone. To read its own thousands takes 12 s."""

import functools
import sys

if sys.orig_argv[1:3] == ["-m", "lm_eval"] or "cli_evaluate()" in " ".join(sys.orig_argv):
    from lm_eval import tasks

    tasks.TaskManager = functools.partial(tasks.TaskManager, include_defaults=False)
