"""Failures of compilers, in one line."""

import pytest

from eagle_aot.common.errors import ExportError, SettingError
from eagle_aot.export.as_export_error import as_export_error

REPORT = """Failed to run a block: An exception occurred in a subprocess:

Name=kernel
Traceback (most recent call last):
  File "kernel.py", line 9, in <module>
SyntaxError: unterminated string literal
"""

LINKER = """CppCompileError: C++ compile error

Command:
g++ a.o b.o -o kernels.so

Output:
ld: warning: a.o: missing .note.GNU-stack section implies executable stack
ld: b.o:(.rodata+0x0): multiple definition of `__kernel_start'; a.o: first defined here
collect2: error: ld returned 1 exit status
"""

FULL_DISK = """C++ compile error

Command:
g++ a.o b.o -o kernels.so

Output:
/usr/bin/ld: final link failed: No space left on device
collect2: error: ld returned 1 exit status
"""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("no room\nat all", "lowering failed: no room"),
        ("", "lowering failed: RuntimeError"),
        ("what follows:", "lowering failed: what follows:"),
        (
            REPORT,
            "lowering failed: Failed to run a block: An exception occurred in a subprocess: "
            "SyntaxError: unterminated string literal",
        ),
        (
            LINKER,
            "lowering failed: CppCompileError: C++ compile error: ld: b.o:(.rodata+0x0): multiple "
            "definition of `__kernel_start'; a.o: first defined here",
        ),
        (
            FULL_DISK,
            "lowering failed: C++ compile error: /usr/bin/ld: final link failed: No space left on "
            "device",
        ),
        ("C++ compile error\n\nOutput:\n", "lowering failed: C++ compile error: no output"),
    ],
)
def test_the_line_says_what_was_wrong(message: str, line: str) -> None:
    with pytest.raises(ExportError) as caught, as_export_error("lowering failed"):
        raise RuntimeError(message)
    assert str(caught.value) == line


def test_our_own_are_left_as_they_are() -> None:
    with pytest.raises(SettingError, match=r"^too long$"), as_export_error("lowering failed"):
        raise SettingError("too long")
