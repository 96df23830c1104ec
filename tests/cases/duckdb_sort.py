# EXPECT: exit 0, last line "ok 800000 100003"
# BUDGETS: 96M
# NEEDS: python:duckdb
# A database in the process, with an allocator of its own in a module that is loaded late: a table larger than the
# budget is sorted, grouped and joined by two threads, and none of it may be spilled to a file.
import sys

import duckdb

ROWS, GROUPS, NAMES = 800_000, 100_003, 10_000
database = duckdb.connect(":memory:")
database.execute("SET threads = 2; SET memory_limit = '1GB'; SET temp_directory = ''; SET preserve_insertion_order = false")
database.execute(
    "CREATE TABLE rows AS SELECT hash(i) AS key, (i * 7919) % ? AS part, 'name ' || (i % ?) AS name FROM range(?) made(i)",
    [GROUPS, NAMES, ROWS],
)
database.execute("CREATE TABLE sorted AS SELECT *, row_number() OVER (ORDER BY name, key) AS place FROM rows")


def one(query):
    """The only row of a query."""
    return database.execute(query).fetchone()


wrong = one(
    "SELECT count(*) FROM sorted a JOIN sorted b ON b.place = a.place + 1 WHERE (b.name, b.key) < (a.name, a.key)"
)[0]
groups, members, smallest = one(
    "SELECT count(*), sum(members), min(members) FROM (SELECT part, count(*) AS members FROM rows GROUP BY part)"
)
joined, names = one("SELECT count(*), count(DISTINCT s.name) FROM rows r JOIN sorted s ON r.key = s.key AND r.name = s.name")
same = one("SELECT (SELECT bit_xor(hash(key, part, name)) FROM rows) = (SELECT bit_xor(hash(key, part, name)) FROM sorted)")[0]
if wrong or members != ROWS or smallest < ROWS // GROUPS or names != NAMES or not same:
    sys.exit(f"FAIL {wrong=} {members=} {smallest=} {names=} {same=}")
print("ok", joined, groups)
