"""Decoders with a norm before each branch and none after: the frame of Llama and Qwen3."""
