"""How tokens are chosen: a function of the text, the request's parameters and its seed."""
