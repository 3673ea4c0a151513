"""First on PYTHONPATH, this makes lm_eval's command read only the tasks of --include_path: its own take 12 s."""

import functools
import sys

if sys.orig_argv[1:3] == ["-m", "lm_eval"] or "cli_evaluate()" in " ".join(sys.orig_argv):
    from lm_eval import tasks

    tasks.TaskManager = functools.partial(tasks.TaskManager, include_defaults=False)
