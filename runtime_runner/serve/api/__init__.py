"""The OpenAI API over a `Service`."""
