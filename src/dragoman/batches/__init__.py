"""Batches: call a model for every row of a file, and write a file of results.

Box: extras.

A batch that was stopped at any point continues where it stopped when it is started again.

- ``api``: the function ``batch()``
- ``options``: the keyword arguments of ``batch()``
- ``sources``: read JSONL, CSV and Parquet files, row by row
- ``rows``: the formats of an input row, and its conversion to a request
- ``embed``: parse rows to embed, and recognise batches of embeddings
- ``job``: a batch as data, and its state file
- ``runner``: the local runner
- ``remote``: the runner that uses the batch APIs of providers
- ``apis``: clients of the batch APIs
- ``cluster``: the runner on Ray
- ``parts``: the part files that the workers on Ray write
- ``output``: the output file, which is also the checkpoint
- ``results``: the rows of the output
- ``spending``: budgets
"""

from .api import BatchReport, StrictError, batch
from .options import BatchOptions, BatchProgress
from .output import OutputError
from .rows import BadRow
from .runner import BatchError

__all__ = [
    "BadRow", "BatchError", "BatchOptions", "BatchProgress", "BatchReport", "OutputError",
    "StrictError", "batch",
]  # fmt: skip
