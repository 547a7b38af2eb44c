"""An HTTP server with the OpenAI API for one artifact."""
