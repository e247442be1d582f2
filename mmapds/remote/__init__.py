"""Objects of a store (S3, GCS, Azure, HTTP, the Hugging Face hub) as local files. See docs/remote.md.

`urls` checks names, `transfer` moves bytes in a child process, `cache` keeps whole objects as files of one directory,
and `objects` joins these as a place: see `storage/places.py`.
"""
