"""Errors that a user can fix; their text is the line that a command prints.

EagleError
├── CheckpointError            a checkpoint on disk is incomplete, damaged or inconsistent
│   └── CheckpointNotFoundError    the directory or file is not there (also a FileNotFoundError)
├── UnsupportedError           understood, but not something this version can do
├── PairingError               target and draft head do not belong together (also a ValueError)
├── SettingError               an option or argument is out of its range (also a ValueError)
├── PromptError                the prompt cannot be served by this artifact (also a ValueError)
│   └── ContextLengthError         it is too long for the artifact's context
├── ArtifactError              the artifact is damaged, foreign or of another version
├── HubError                   a repository of the Hugging Face Hub cannot be read or written
└── ExportError                tracing, checking or lowering failed
"""


class EagleError(Exception):
    """Base of all failures that are the user's to fix: one line, exit code 1."""


class CheckpointError(EagleError):
    """A checkpoint on disk is incomplete, damaged or inconsistent."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """A checkpoint directory or file does not exist."""


class UnsupportedError(EagleError):
    """The input was understood, but this version cannot serve it."""


class PairingError(EagleError, ValueError):
    """Target and draft head do not belong together."""


class SettingError(EagleError, ValueError):
    """An option or argument is outside its range."""


class PromptError(EagleError, ValueError):
    """The prompt cannot be served by this artifact."""


class ContextLengthError(PromptError):
    """The prompt is too long for the artifact's context."""


class ArtifactError(EagleError):
    """The artifact is damaged, incomplete, or of another version."""


class HubError(EagleError):
    """A repository of the Hugging Face Hub cannot be read or written."""


class ExportError(EagleError):
    """Tracing, checking or lowering failed."""


def reason(error: OSError | UnicodeError) -> str:
    """Return why a file cannot be read or written, without its name."""
    return getattr(error, "strerror", None) or str(error)
