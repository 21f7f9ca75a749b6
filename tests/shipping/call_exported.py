"""Calls a function of an exported library on made-up addresses: ``library function words``, for test_gpus.py.

The words are JSON: arrays as [address, shape, strides], then integers, then the bytes of the workspace.
"""

import ctypes
import json
import sys


class Array(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_void_p),
        ("shape", ctypes.c_longlong * 8),
        ("strides", ctypes.c_longlong * 8),
    )


def main() -> None:
    for fake in sys.argv[4:]:
        ctypes.CDLL(fake)  # by its name, the launch code then finds it
    library, given = ctypes.CDLL(sys.argv[1]), json.loads(sys.argv[3])
    arrays = [Array(address, tuple(shape), tuple(strides)) for address, shape, strides in given["arrays"]]
    words = [ctypes.byref(one) for one in arrays]
    needed = ctypes.c_ulonglong(12345)
    numbers = [ctypes.c_float(value) for value in given["numbers"]]
    ask, launch = getattr(library, f"{sys.argv[2]}_workspace"), getattr(library, sys.argv[2])
    for _ in range(given.get("times", 1)):
        error = ask(*words, ctypes.c_void_p(77), ctypes.byref(needed))
        print("asked", error & 255, error >> 8, needed.value)
        memory = ctypes.create_string_buffer(b"\x11" * (needed.value + 512))
        start = -(-ctypes.addressof(memory) // 256) * 256
        size = needed.value + given.get("more", 0)
        error = launch(
            *words, *numbers, ctypes.c_void_p(start), ctypes.c_ulonglong(size), ctypes.c_void_p(77)
        )
        print("done", error & 255, error >> 8, start, flush=True)
        print("workspace", memory.raw[start - ctypes.addressof(memory) :][: needed.value].hex() or "-")
    print("status", getattr(library, f"{given['status']}_status")())


if __name__ == "__main__":
    main()
