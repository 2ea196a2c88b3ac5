"""Process the records of a group in parallel: in order by key, with commits that never pass an unfinished record."""
