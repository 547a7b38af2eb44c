"""Code that all parts share: errors, commands, prompts, tokenizers."""
