"""NumPy arrays larger than RAM, behind ordinary pointers.

>>> import folioswap
>>> pool = folioswap.Pool(memory="64M")
>>> a = pool.zeros((1000, 1000), dtype="f4")
>>> a.shape, a.dtype, float(a.sum())
((1000, 1000), dtype('float32'), 0.0)

A `Pool` has a budget of RAM and swap devices. Its arrays are plain `numpy.ndarray`: views, ufuncs, pandas, PyArrow and
PyTorch work on them. What does not fit the budget lies on the swap device, and comes back when it is touched.
"""

from ._native import __version__
from ._fit import Fit
from ._pool import Pool
from ._stats import Stats

__all__ = ["Fit", "Pool", "Stats", "__version__"]
