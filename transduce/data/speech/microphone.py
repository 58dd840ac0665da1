"""Sound from a microphone, by the library sounddevice, which is loaded when it is asked for."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from transduce.errors import InputError, require


def check_microphone() -> None:
    """Check that there is something to record with, before anything else takes time.

    Raises:
        InputError: sounddevice is not installed.
    """
    require("sounddevice", "a microphone", "microphone")


def record(wait: Callable[[], object]) -> tuple[Float[np.ndarray, " n"], int]:
    """Sound of the default microphone, one channel, at its own rate in Hz.

    Args:
        wait: what is recorded until it returns.

    Raises:
        InputError: sounddevice is not installed, or there is no microphone, or no sound came from
            it.
    """
    check_microphone()
    import sounddevice

    blocks: list[Float[np.ndarray, "n 1"]] = []

    def keep(block: Float[np.ndarray, "n 1"], *_: Any) -> None:
        blocks.append(block.copy())  # the library uses its memory again

    try:
        rate = int(sounddevice.query_devices(kind="input")["default_samplerate"])
        with sounddevice.InputStream(samplerate=rate, channels=1, dtype="float32", callback=keep):
            wait()
    except sounddevice.PortAudioError as error:
        raise InputError(
            f"a microphone must be there, but {error}; plug one in, or name a sound file"
        ) from error
    if not blocks:
        raise InputError(
            "a microphone must give sound, but nothing came; look at the system's sound settings"
        )
    return np.concatenate(blocks)[:, 0], rate
