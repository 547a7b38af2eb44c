"""Google's assistant of Gemma 4: a drafter that reads the target's own keys and values."""
