# SPDX-License-Identifier: Apache-2.0
# What the pages' examples on numpy arrays take as given.
import convoy
import numpy

_random = numpy.random.default_rng(1)


def _array(*shape):
    return _random.standard_normal(shape, dtype=numpy.float32)


x, skip, filter = _array(1, 6, 6, 32), _array(1, 6, 6, 32), _array(32, 3, 3, 32)
frames, last, taps = _array(1, 4, 6, 6, 32), _array(1, 2, 6, 6, 32), _array(32, 3, 3, 3, 32)
b, gamma, beta = _array(32), _array(32), _array(32)
