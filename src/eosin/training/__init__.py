"""Maximum likelihood training, safe to kill."""
