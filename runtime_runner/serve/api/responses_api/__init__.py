"""POST /v1/responses: OpenAI's newer API, in the terms of its older one for chats."""
