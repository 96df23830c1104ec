#!/usr/bin/env python3
"""A PostgreSQL server of its own in the current folder: loads tables, sorts, joins, groups and builds an index with
work_mem above what the budget allows, in two sessions at once. Prints what the server answers. As root it becomes user
nobody first, because the server refuses root. Arguments: the folder of the server's programs, and a factor of the
rows."""

import os
import shutil
import subprocess
import sys
import tempfile

SETTINGS = """\
listen_addresses = ''
shared_buffers = 8MB
fsync = off
logging_collector = off
max_parallel_workers_per_gather = 0
jit = off
"""

SESSIONS = ["""
SET work_mem = '512MB';
SET maintenance_work_mem = '512MB';
CREATE TABLE items AS SELECT n AS id, md5(n::text) AS name, n::bigint * 7919 % 100003 AS kind
    FROM generate_series(1, 150000 * FACTOR) n;
SELECT count(*), min(name), max(name) FROM (SELECT name FROM items ORDER BY name OFFSET 1000) sorted;
SELECT count(*), sum(a.id % 1000), sum(length(b.name)) FROM items a JOIN items b ON a.name = b.name;
SELECT count(*), sum(n) FROM (SELECT kind, count(*) AS n, array_agg(name) FROM items GROUP BY kind) grouped;
CREATE INDEX ON items (name);
SELECT id, kind FROM items WHERE name > 'ffff' ORDER BY name LIMIT 5;
""", """
SET work_mem = '512MB';
SELECT count(*), sum(v)
    FROM (SELECT n, n::bigint * 31 % 65537 AS v FROM generate_series(1, 300000 * FACTOR) n ORDER BY 2, 1) sorted;
SELECT md5(string_agg(md5(n::text), '' ORDER BY n DESC)) FROM generate_series(1, 100000 * FACTOR) n;
"""]


def main(programs, factor="1"):
    folder = tempfile.mkdtemp(prefix="postgres-", dir=os.getcwd())
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")
        os.chmod(os.getcwd(), 0o755)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    os.chdir(folder)
    tool = lambda name: os.path.join(programs, name)  # noqa: E731
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    init = [tool("initdb"), "--no-sync", "-A", "trust", "-U", "test", "--locale=C", "-E", "UTF8", "data"]
    subprocess.run(init, check=True, stdout=subprocess.DEVNULL, env=plain)
    with open("data/postgresql.conf", "a", encoding="utf-8") as settings:
        settings.write(SETTINGS)
    names = [f"session-{number}" for number in range(len(SESSIONS))]
    for name, text in zip(names, SESSIONS):
        with open(name, "w", encoding="utf-8") as file:
            file.write(text.replace("FACTOR", factor))
    start = [tool("pg_ctl"), "-D", "data", "-o", f"-k {folder}", "-l", "log", "-w", "-t", "60", "start"]
    subprocess.run(start, check=True, stdout=subprocess.DEVNULL)
    try:
        psql = [tool("psql"), "-h", folder, "-U", "test", "-d", "postgres", "-At", "-q", "-v", "ON_ERROR_STOP=1"]
        talks = [subprocess.Popen([*psql, "-f", name], stdout=subprocess.PIPE, env=plain) for name in names]
        for talk in talks:
            answer = talk.communicate()[0].decode()
            print(f"status {talk.returncode}\n{answer}", end="")
    finally:
        subprocess.run([tool("pg_ctl"), "-D", "data", "-m", "fast", "-w", "stop"], check=True, stdout=subprocess.DEVNULL)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
