"""The OpenAI API, as FastAPI serves it, and the page."""
