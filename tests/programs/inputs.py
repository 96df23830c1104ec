"""Creates the inputs of the programs from fixed seeds, so that they are the same on every run."""

import random


def lines(path, count):
    """Random hexadecimal lines of 16 letters."""
    data = random.Random(3).randbytes(count * 8).hex().encode()
    with open(path, "wb") as file:
        for start in range(0, len(data), 16 << 12):
            part = data[start : start + (16 << 12)]
            file.write(b"\n".join(part[at : at + 16] for at in range(0, len(part), 16)) + b"\n")


def text(path, size_bytes):
    """Text from a small vocabulary. It compresses, but not to almost nothing."""
    rng = random.Random(4)
    words = ["".join(rng.choices("etaoinshrdlucmfw", k=rng.randint(2, 9))) for _ in range(4000)]
    sentences = [" ".join(rng.choices(words, k=12)) for _ in range(20000)]
    with open(path, "w", encoding="ascii") as file:
        while file.tell() < size_bytes:
            file.write("\n".join(rng.choices(sentences, k=2000)) + "\n")


def c_source(path, nr_functions):
    """One large C file with loops, switches, tables, and calls from each function to earlier ones."""
    rng = random.Random(5)
    with open(path, "w", encoding="ascii") as file:
        file.write("typedef unsigned long word;\nextern word sink(word);\n")
        for number in range(nr_functions):
            table = ", ".join(f"{rng.getrandbits(32)}u" for _ in range(64))
            file.write(f"static const unsigned table{number}[64] = {{ {table} }};\n")
            file.write(f"word f{number}(word a, word b, word *p)\n{{\n    word s = {rng.getrandbits(20)};\n")
            for step in range(6):
                file.write(f"    for (word i = 0; i < (a & {rng.getrandbits(6)}) + {step}; i++) {{\n")
                file.write(f"        s += p[i] * {rng.getrandbits(16)} ^ table{number}[(s + i) & 63];\n")
                file.write(f"        switch ((s >> {rng.randint(1, 20)}) & 7) {{\n")
                for case in range(6):
                    file.write(f"        case {case}: s ^= (b << {rng.randint(1, 31)}) + p[{rng.randint(0, 99)}]; break;\n")
                file.write(f"        default: s = sink(s + {step});\n        }}\n    }}\n")
                if number:
                    file.write(f"    s += f{rng.randrange(number)}(s, a ^ {step}, p);\n")
            file.write("    return s;\n}\n")


def sql(path, nr_rows):
    """Loads two tables, indexes one in scattered order, joins and groups them."""
    with open(path, "w", encoding="ascii") as file:
        file.write(f"""
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, weight INTEGER);
CREATE TABLE sale(item INTEGER, day INTEGER, amount INTEGER, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {nr_rows // 10})
  INSERT INTO item SELECT i, 'item ' || hex(i * 7919 % 1000003), i * 31 % 977 FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {nr_rows})
  INSERT INTO sale SELECT i * 7919 % {nr_rows // 10} + 1, i % 365, i * 104729 % 10007,
    printf('note %d about sale %d', i * 31 % 1009, i) FROM n;
CREATE INDEX sale_item ON sale(item);
SELECT count(*), sum(amount), sum(length(note)) FROM sale;
SELECT day, count(*), sum(amount * weight), max(name) FROM sale JOIN item ON item.id = sale.item
  GROUP BY day ORDER BY day;
SELECT item.id, name, (SELECT sum(amount) FROM sale WHERE sale.item = item.id) FROM item ORDER BY name, id LIMIT 2000;
PRAGMA integrity_check;
""")
