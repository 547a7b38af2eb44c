"""The server's log: one JSON object a line."""

import json
import logging
import time


class JsonLines(logging.Formatter):
    """`time` in UTC, `level`, `logger`, `message`, the `fields` that a line brings, and `error`,
    the traceback of one that has one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)
