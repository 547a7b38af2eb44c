"""What all rooms share: errors, the manners of commands, prompts, tokenizers."""
