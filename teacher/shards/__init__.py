"""Private rows that outgrow a process: shards on disk, a worker for each, and a teacher over them."""
