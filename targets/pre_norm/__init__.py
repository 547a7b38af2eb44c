"""Decoders with a norm before each branch and none after: what Llama and Qwen3 share."""
