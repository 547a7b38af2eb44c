"""Parts that every decoder family shares: norms, rotary positions, KV caches, attention."""
