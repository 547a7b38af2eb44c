"""Where the time of one `target_verify` goes."""
