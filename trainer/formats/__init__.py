"""Datasets as files have them: packed or not, in any encoding, as lines, JSON, tables or Parquet. Free of torch.

unpacking  what is in a packed file, or why it is damaged
source     a file's bytes: unpacked, in UTF-8, bounded
rows       what a row is, and every way in which one can be unusable
fields     the text of a row of JSON
scanner    JSON as it streams by
outline    where the rows of a JSON object are
documents  JSON lines, and JSON documents that do not fit into memory
tables     CSV, TSV and their kin
parquet    columns of Parquet, through pyarrow
conversations  rows that are messages with roles, in the forms of chat models' own programs
talk       what is said in such a row

Which format a file has, ``protocol.datasets.file_formats`` says; which of these reads it, ``trainer.data.text.numbered``.
"""
