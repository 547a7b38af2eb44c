"""How a prompt is cut for prefilling."""


def plan_chunks(length: int, longest: int, min_prefill: int, max_verify_window: int) -> list[range]:
    """Consecutive position ranges that cover [0, length).

    Chunks of `min_prefill` to `longest` tokens go through `prefill`; what is too short for it goes
    through `target_verify` in pieces of at most `max_verify_window`.
    """
    chunks, start = [], 0
    while start < length:
        left = length - start
        size = min(left, longest)
        if size < min_prefill:
            size = min(left, max_verify_window, longest)
        chunks.append(range(start, start + size))
        start += size
    return chunks
