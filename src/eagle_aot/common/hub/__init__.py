"""The Hugging Face Hub: names of repositories, downloads into the local cache, and errors.

`huggingface_hub` does the work: HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are its settings.
It is imported on first use.
"""

from eagle_aot.common.hub.downloads import (
    Download,
    cache_directory,
    download,
    fetch,
    is_offline,
    plan_download,
    read_range,
)
from eagle_aot.common.hub.errors import hub_errors
from eagle_aot.common.hub.repository import Repository

__all__ = [
    "Download", "Repository", "cache_directory", "download", "fetch", "hub_errors", "is_offline",
    "plan_download", "read_range",
]  # fmt: skip
