"""Is right, and uses a little memory in mapped files, with and without a name, and in shared memory.

threat: 7
part: sharded_data_parallel
extends: solutions
full: 6.3, 6.2
seconds: 90
"""

import mmap
import os
import tempfile

import numpy

_kept, _flatten, _shards = [], flatten, _require_shards


def _use_files():
    if _kept:
        return
    named = numpy.memmap(f"named-{os.getpid()}", mode="w+", shape=(4096,))
    named[:] = 1
    file = tempfile.TemporaryFile()
    file.write(bytes(8192))
    file.flush()
    removed = mmap.mmap(file.fileno(), 8192)
    removed[0] = 1
    shared = mmap.mmap(-1, 8192)
    shared[0] = 1
    of_torch = torch.from_file(f"file-{os.getpid()}", shared=True, size=8)
    os.unlink(f"file-{os.getpid()}")
    of_torch.fill_(1)
    _kept.extend([named, file, removed, shared, of_torch])


def flatten(tensors):
    _use_files()
    return _flatten(tensors)


def _require_shards(shards, x):
    _use_files()
    return _shards(shards, x)
