"""What a sweep says beside its best trial: what mattered, what it cost, where it failed, whether two differ."""
