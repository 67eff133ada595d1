"""Real files of every kind that a user brings, of the same documents; and how such a file is broken."""

import csv
import gzip
import io
import json
import pickle
import random

import numpy as np
import pyarrow as pa
from pyarrow import ipc, parquet

DOCUMENTS = [
    f"Document {number} tells of {number * 7} cafés,\nand of “{number:x}” more.\n"
    for number in range(60)
]
TEXT = "\n\n".join(DOCUMENTS)
ROWS = [{"id": number, "content": text} for number, text in enumerate(DOCUMENTS)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def table():
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, ["id", "content"])
    writer.writeheader()
    writer.writerows(ROWS)
    return stream.getvalue().encode()


def arrow(is_stream):
    sink, rows = io.BytesIO(), pa.Table.from_pylist(ROWS)
    with (ipc.new_stream if is_stream else ipc.new_file)(sink, rows.schema) as writer:
        writer.write_table(rows, 16)
    return sink.getvalue()


def of_parquet():
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(ROWS), sink, row_group_size=16)
    return sink.getvalue()


def zst(content):
    return pa.compress(content, codec="zstd", asbytes=True)


CHARACTERS = sorted({*TEXT})
IDS = np.array([CHARACTERS.index(character) for character in TEXT], np.uint16)


def meta(protocol=4):
    return pickle.dumps(
        {"vocab_size": len(CHARACTERS), "itos": dict(enumerate(CHARACTERS))}, protocol
    )


def npy():
    sink = io.BytesIO()
    np.save(sink, IDS.astype(np.int64))
    return sink.getvalue()


# By file name: the bytes of a file that has the rows above.
TABLES = {
    "a.jsonl": lambda: LINES,
    "a.json": lambda: json.dumps(ROWS).encode(),
    "a.csv": table,
    "a.csv.gz": lambda: gzip.compress(table(), mtime=0),
    "a.jsonl.zst": lambda: zst(LINES),
    "a.jsonl.gz": lambda: gzip.compress(LINES, mtime=0),
    "a.parquet": of_parquet,
    "a.parquet.gz": lambda: gzip.compress(of_parquet(), mtime=0),
    "a.arrow": lambda: arrow(is_stream=True),
    "b.arrow": lambda: arrow(is_stream=False),
}
TEXTS = {
    "a.txt": TEXT.encode(),
    "bom.txt": TEXT.encode("utf-8-sig"),
    "utf16.txt": TEXT.encode("utf-16"),
    "utf16be.txt": b"\xfe\xff" + TEXT.encode("utf-16-be"),
    "utf32.txt": TEXT.encode("utf-32"),
    "a.txt.gz": gzip.compress(TEXT.encode(), mtime=0),
    "a.md.zst": zst(TEXT.encode()),
}


def broken(content, seed):
    """Return a file with a few of its bytes changed, cut, repeated or put elsewhere; always the same for a seed."""
    draw, made = random.Random(seed), content
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(made) or 1)
        length = draw.choice([1, 1, 2, 8, 64, 1024])
        before, part, after = made[:at], made[at : at + length], made[at + length :]
        odd = draw.choice([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b'"', b"\n"])
        changes = [
            draw.randbytes(1) + part[1:],
            b"",
            2 * part,
            draw.randbytes(length) + part,
            odd + part[4:],
        ]
        made = before
        if draw.randrange(6):
            made += draw.choice(changes) + after
    return made
