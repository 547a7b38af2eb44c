"""An artifact behind the OpenAI API."""
