"""Batches: call a model for every row of a file and write a file of results, restartable at any
point.

============  ==================================================================================
``api``       ``batch()``
``options``   its keywords
``sources``   JSONL, CSV and Parquet files, read row by row
``rows``      the shapes of a row, and the request it asks for
``template``  prompts made of columns
``job``       a batch as data, and its state file
``runner``    the local runner
``remote``    the runner for batch APIs of providers
``apis``      those APIs
``cluster``   the runner on Ray
``parts``     the part files of its workers
``output``    the output file, which is the checkpoint
``results``   a row of the output
``spending``  budgets
============  ==================================================================================
"""

from .api import BatchReport, StrictError, batch
from .options import BatchOptions, BatchProgress
from .output import OutputError
from .rows import BadRow
from .runner import BatchError

__all__ = [
    "BadRow",
    "BatchError",
    "BatchOptions",
    "BatchProgress",
    "BatchReport",
    "OutputError",
    "StrictError",
    "batch",
]
