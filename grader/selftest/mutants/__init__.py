"""Wrong submissions, as students get them wrong: a file for each part."""

from grader.selftest.mutants import collectives, data_parallel, pipeline_parallel, tensor_parallel

MUTANTS = collectives.MUTANTS + data_parallel.MUTANTS + tensor_parallel.MUTANTS + pipeline_parallel.MUTANTS
