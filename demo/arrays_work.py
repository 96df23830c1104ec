"""One turn of demo/arrays.py: `arrays_work.py WORK SYSTEM BUDGET_BYTES DIRECTORY`. Prints its seconds and a digest of
its result as JSON. SYSTEM says where the arrays are: `pool` (folioswap), `memory` (the kernel's swap pages them),
`memmap` (files that are mapped) or `dask` (files that are read in chunks)."""

import hashlib
import json
import os
import resource
import sys
import time

import numpy as np

PIECE = 1 << 18
IMPORTS = {
    "groupby": ("pandas",), "fit": ("sklearn.linear_model", "sklearn.preprocessing"), "vectors": ("faiss",), "expression": ("dask.array",),
}
COLUMNS = 64


class Place:
    """Where the arrays of a turn are."""

    def __init__(self, system, budget, directory):
        self.system, self.budget, self.directory, self.nr_files = system, budget, directory, 0
        self.pool = None
        if system == "pool":
            import folioswap

            self.pool = folioswap.Pool(budget, swap=os.path.join(directory, "swap"))

    def empty(self, shape, dtype):
        """A new array."""
        if self.system == "pool":
            return self.pool.empty(shape, dtype)
        if self.system in ("memmap", "dask"):
            self.nr_files += 1
            return np.lib.format.open_memmap(os.path.join(self.directory, f"{self.nr_files}.npy"), "w+", dtype, shape)
        return np.empty(shape, dtype)

    def __enter__(self):
        if self.pool:
            self.pool.__enter__()

    def __exit__(self, *about):
        if self.pool:
            self.pool.__exit__(*about)


def fill(array, seed, draw):
    """Fills an array in pieces: `draw(generator, shape)`."""
    generator, step = np.random.default_rng(seed), max(1, PIECE // max(1, array[0].size))
    for at in range(0, len(array), step):
        part = array[at : at + step]
        part[...] = draw(generator, part.shape)
    return array


def normal(generator, shape):
    """Values of a normal distribution."""
    return generator.standard_normal(shape, dtype="f4")


def sort(place):
    """np.sort in place of 4 budgets of random numbers. Yields when the measured part begins."""
    array = fill(place.empty((4 * place.budget // 8,), "f8"), 1, lambda generator, shape: generator.random(shape))
    yield
    array.sort()
    assert all((part[1:] >= part[:-1]).all() for part in np.array_split(array, 64))
    yield array[:: 1 << 16]


def groupby(place):
    """pandas: sums and means of groups, over 4 budgets."""
    import pandas

    rows = 4 * place.budget // 32
    table = place.empty((4, rows), "i8")
    for row, top in zip(table, (1000, 1 << 40, 1 << 40, 1 << 40)):
        fill(row, top, lambda generator, shape, top=top: generator.integers(0, top, shape))
    yield
    with place:
        frame = pandas.DataFrame({name: row for name, row in zip("kabc", table)}, copy=False)
        groups = frame.groupby("k").agg({"a": "sum", "b": "max", "c": "mean"})
    yield groups.to_numpy()


def fit(place):
    """scikit-learn: a scaler and a linear classifier fitted on 4 budgets."""
    from sklearn.linear_model import SGDClassifier
    from sklearn.preprocessing import StandardScaler

    x = fill(place.empty((4 * place.budget // 4 // COLUMNS, COLUMNS), "f4"), 2, normal)
    y = np.concatenate([part[:, 0] + part[:, 1] > 0 for part in np.array_split(x, 64)])
    yield
    with place:
        scaled = StandardScaler(copy=False).fit_transform(x)
        model = SGDClassifier(max_iter=2, tol=None, shuffle=False, random_state=0).fit(scaled, y)
        score = model.score(scaled, y)
    yield np.append(model.coef_, score)


def vectors(place):
    """faiss: an index of lists over 4 budgets of vectors is built in the array's place, then asked."""
    import faiss

    faiss.omp_set_num_threads(1)
    width, lists = 128, 32
    total = 2 * place.budget // 4 // width
    data = fill(place.empty((total, width), "f4"), 3, normal)
    yield
    means = faiss.Kmeans(width, lists, niter=4, seed=1)
    means.train(data[:: max(1, total // 16384)].copy())
    with place:
        step = 1 << 14
        owner = np.concatenate([means.index.search(data[at : at + step], 1)[1][:, 0] for at in range(0, total, step)])
        ends = np.cumsum(np.bincount(owner, minlength=lists))
        target = np.empty(total, "i8")
        target[np.argsort(owner, kind="stable")] = np.arange(total)
        ordered = place.empty((total, width), "f4")
        for at in range(0, total, step):
            ordered[target[at : at + step]] = data[at : at + step]
        found = []
        for at in range(0, total, total // 24):
            query = data[at : at + 1].copy()
            for one in means.index.search(query, 8)[1][0]:
                part = ordered[ends[one - 1] if one else 0 : ends[one]]
                found.append(faiss.knn(query, part, 3)[0])
    yield np.concatenate(found)


def expression(place):
    """`((a * b) + c).sum()` where a, b and c together are 4 budgets. All of them are on the disk when it begins."""
    rows = 4 * place.budget // 3 // 8
    arrays = [fill(place.empty((rows,), "f8"), seed, lambda generator, shape: generator.random(shape)) for seed in (1, 2, 3)]
    if place.system == "dask":
        import dask
        import dask.array

        [array.flush() for array in arrays]
        del arrays[:]
        yield
        chunk = 1 << 20
        load = dask.delayed(lambda number, at: np.fromfile(os.path.join(place.directory, f"{number}.npy"), "f8", chunk, offset=128 + 8 * at))
        with dask.config.set(scheduler="threads", num_workers=2):
            a, b, c = (
                dask.array.concatenate([dask.array.from_delayed(load(number, at), (min(chunk, rows - at),), "f8") for at in range(0, rows, chunk)])
                for number in (1, 2, 3)
            )
            total = float(((a * b) + c).sum().compute())
        yield np.float32(total)
        return
    a, b, c = arrays
    for array in arrays:
        place.pool.cold(array)
    while place.pool.stats()["mapped_bytes"] > place.budget // 16:
        time.sleep(0.01)
    yield
    with place:
        total = float(((a * b) + c).sum())
    yield np.float32(total)


def main():
    """Runs one turn."""
    work, system, budget, directory = sys.argv[1:5]
    if system == "imports":
        for name in IMPORTS.get(work, ()):
            __import__(name)
        print(json.dumps({"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}))
        return
    place = Place(system, int(budget), directory)
    turn = globals()[work](place)
    next(turn)
    begun = time.monotonic()
    result = next(turn)
    seconds = time.monotonic() - begun
    digest = hashlib.sha256(np.ascontiguousarray(result).tobytes()).hexdigest()
    print(json.dumps({"seconds": seconds, "digest": digest}), flush=True)


if __name__ == "__main__":
    main()
