import os
import signal

import pytest

from eagle_aot.runtime_runner.chat.interrupt import interruptible


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_is_a_question_first_and_an_end_then() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as pressed:
        assert not pressed()
        interrupt()
        assert pressed()
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert signal.getsignal(signal.SIGINT) is before
    with interruptible() as pressed:
        assert not pressed()
