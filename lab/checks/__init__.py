"""Whether an artifact is whole, lossless, and drafts as it did."""
