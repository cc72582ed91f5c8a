"""Private rows in shards on disk, a worker for each shard, and one index over them."""
