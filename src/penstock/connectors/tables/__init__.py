"""Tables of the latest row per key, which a running job keeps in a folder and others read while it does.

    <path>/_penstock_table.json     what the table is: its columns and its key (`definition.py`)
    <path>/_rows/rows-....parquet   the rows (`names.py`, `files.py`)
    <path>/_staging/                what is not committed yet, as in a `FileSink`

A table is a set of rows, each with a version, and shows the row with the highest version of each key. Later rows of a
key have higher versions. That is all that is needed to be right: a file may be there twice, several files may be
merged into one by anybody at any time, and old ones may go as soon as one that has their rows is there. Nothing has to
happen in one step but the appearance of one file.
"""
