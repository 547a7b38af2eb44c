"""From directories to a pair on the host, with all that is known of where it comes from."""
