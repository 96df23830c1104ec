"""Real libraries on arrays of a pool give the same results as in RAM, bit for bit where they are deterministic."""

import folioswap
import numpy as np
import pytest

MIB = 1 << 20
SWAP = "ram:512M"


@pytest.fixture
def small():
    """A pool of 32 MiB."""
    return folioswap.Pool("32M", swap=SWAP)


def test_numpy(small):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 2000, 1000))

    def work(a, b):
        spectrum = np.fft.rfft(a, axis=1)
        return [
            ((a * b) + a).sum(axis=0), np.linalg.norm(a - b, axis=1), a.T @ b, np.sort(a, axis=None)[::1000],
            np.argsort(b[:, 0]), np.unique((a * 10).astype(int)), abs(spectrum).max(axis=0), np.cumsum(b, axis=0)[-1],
            np.where(a > 0, a, b).mean(axis=1), np.concatenate([a, b])[::7, 3], np.median(a, axis=0),
        ]

    wanted = work(a, b)
    pa, pb = small.array(a), small.array(b)
    with small:
        found = work(pa, pb)
    for number, (one, other) in enumerate(zip(wanted, found)):
        assert np.array_equal(one, other), number
    assert small.stats()["swapped_out_bytes"] > 8 * MIB


def test_pandas(small):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(4)
    keys, values = rng.integers(0, 5000, 2 * MIB), rng.standard_normal((2, 2 * MIB))

    def work(keys, values):
        frame = pandas.DataFrame({"key": keys, "a": values[0], "b": values[1]}, copy=False)
        groups = frame.groupby("key").agg({"a": "sum", "b": ["mean", "max"]})
        joined = frame.head(100_000).merge(groups["a"].reset_index(), on="key")
        return [groups, frame.sort_values("a").tail(1000), joined, frame["b"].rolling(100).mean().tail(1000)]

    wanted = work(keys, values)
    keys, values = small.array(keys), small.array(values)
    with small:
        found = work(keys, values)
    for one, other in zip(wanted, found):
        assert one.equals(other)


def test_pyarrow(small):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.compute

    values = small.empty(6 * MIB, "i8")
    values[:] = np.arange(values.size)[::-1]
    column = pyarrow.array(values)
    assert column.buffers()[1].address == values.__array_interface__["data"][0]
    assert pyarrow.compute.sum(column).as_py() == values.size * (values.size - 1) // 2
    assert pyarrow.compute.min_max(column).as_py() == {"min": 0, "max": values.size - 1}
    buffer = pyarrow.py_buffer(values)
    del values
    assert np.frombuffer(buffer, "i8")[-1] == 0


def test_scikit_learn_on_four_budgets():
    pytest.importorskip("sklearn")
    from sklearn.decomposition import IncrementalPCA
    from sklearn.linear_model import Ridge, SGDClassifier
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(5)
    x = rng.standard_normal((100_000, 84))  # 64 MiB
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    pool = folioswap.Pool("16M", swap="ram:256M")

    def work(x, y):
        scaled = StandardScaler(copy=False).fit_transform(x)
        model = SGDClassifier(random_state=0, max_iter=2, tol=None, shuffle=False).fit(scaled, y)
        ridge = Ridge(solver="cholesky", copy_X=False).fit(scaled, y)
        axes = IncrementalPCA(4, batch_size=4096).fit(scaled).components_
        return [scaled[::1000].copy(), model.coef_, ridge.coef_, axes, model.score(scaled, y)]

    with threadpool_limits(1):  # sums in another order differ
        wanted = work(x.copy(), y)
        pooled = pool.array(x)
        with pool:
            found = work(pooled, y)
    for one, other in zip(wanted, found):
        assert np.array_equal(one, other)
    assert pool.stats()["swapped_out_bytes"] > 48 * MIB


def test_a_vector_index(small):
    faiss = pytest.importorskip("faiss")
    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(6)
    vectors = rng.standard_normal((100_000, 128), dtype="f4")  # 49 MiB
    pooled = small.array(vectors)

    def work(vectors):
        graph = faiss.IndexHNSWFlat(128, 8)
        graph.add(vectors[:5000])
        lists = faiss.IndexIVFFlat(faiss.IndexFlatL2(128), 128, 50)
        lists.cp.seed, lists.cp.niter = 1, 5
        lists.train(vectors[::3].copy())
        lists.add(vectors)
        asked = vectors[::1000]
        return [*graph.search(asked, 5), *lists.search(asked, 5), *faiss.knn(asked, vectors, 5)]

    wanted = work(vectors)
    with small:
        found = work(pooled)
    for one, other in zip(wanted, found):
        assert np.array_equal(one, other)
    assert small.stats()["swapped_out_bytes"] > 10 * MIB


def test_torch(small):
    torch = pytest.importorskip("torch", reason="torch is not installed: its wheel brings gigabytes of CUDA")
    values = small.zeros(6 * MIB, "f8")
    tensor = torch.from_numpy(values)
    tensor += torch.arange(values.size, dtype=torch.float64)
    assert tensor.data_ptr() == values.__array_interface__["data"][0] and values[-1] == values.size - 1
    assert float(tensor.sum()) == values.size * (values.size - 1) / 2


def test_dask_fills_an_array(small):
    array = pytest.importorskip("dask.array")
    source = array.arange(6 * MIB, chunks=MIB // 2, dtype="i8")
    target = small.empty(6 * MIB, "i8")
    array.store(source * 2, target, lock=False)
    assert np.array_equal(target, np.arange(6 * MIB) * 2)
    again = array.from_array(target, chunks=MIB)
    assert int(again.sum().compute()) == int(target.sum())


def test_zarr_reads_chunks_into_an_array(small, tmp_path):
    zarr = pytest.importorskip("zarr")
    values = np.arange(8 * MIB, dtype="i8").reshape(-1, 1024)
    stored = zarr.open(str(tmp_path / "z"), mode="w", shape=values.shape, chunks=(512, 1024), dtype="i8")
    stored[:] = values
    target = small.empty(values.shape, "i8")
    for start in range(0, len(values), 512):
        target[start : start + 512] = stored[start : start + 512]
    assert np.array_equal(target, values)
    with small:
        whole = stored[:]
    assert np.array_equal(whole, values)
