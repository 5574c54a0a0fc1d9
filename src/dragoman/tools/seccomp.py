"""A seccomp filter: system calls that no build or test needs return EPERM in the sandbox.

The filter is a classic BPF program as ``bwrap --seccomp`` reads it: a list of instructions of
eight bytes each. The kernel runs it at every system call on a ``struct seccomp_data``::

    offset  0: number of the system call   offset 16: first argument, low 32 bits
    offset  4: architecture                offset 24: second argument, low 32 bits

libseccomp would build the same program; its Python module is not on PyPI, and the program is
short.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import NamedTuple

# Numbers of the system calls on (x86_64, aarch64), from the kernel's asm/unistd_64.h and
# asm-generic/unistd.h.
BLOCKED: dict[str, tuple[int, int]] = {
    # access to memory and descriptors of other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "perf_event_open": (298, 241),
    # changing mounts, from which the sandbox is built, and opening files by handle, not by path
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265),
    # creating namespaces; clone and clone3 are handled below
    "unshare": (272, 97), "setns": (308, 268),
    # access to the user's kernel keyring, which namespaces do not separate
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    # kernel subsystems with a history of privilege escalation
    "bpf": (321, 280), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
}  # fmt: skip


class _Architecture(NamedTuple):
    """A processor architecture and its system call numbers.

    ``audit`` is the kernel's audit value for the architecture, and ``column`` its column in
    ``BLOCKED``. The other fields are the numbers of system calls that need special treatment.
    """

    audit: int
    column: int
    clone: int
    clone3: int
    ioctl: int


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, 0, 56, 435, 16),
    "aarch64": _Architecture(0xC00000B7, 1, 220, 435, 29),
}
_X32 = 0x40000000  # numbers from here on are the x32 variants of x86_64 system calls
_CLONE_NEWUSER = 0x10000000
# ioctl requests that inject terminal input or paste into a console.
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C

_LOAD = 0x20
_IF_EQUAL = 0x15
_IF_AT_LEAST = 0x35
_IF_BITS = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_ERROR = 0x00050000
_EPERM = _ERROR | errno.EPERM
_ENOSYS = _ERROR | errno.ENOSYS

# A BPF instruction: operation, skip if true, skip if false, operand.
_Instruction = tuple[int, int, int, int]


def build_filter(machine: str | None = None) -> bytes | None:
    """Return the filter for an architecture, or ``None`` if it is unsupported.

    The default is the architecture of this machine.
    """
    known = _ARCHITECTURES.get(machine or platform.machine())
    if known is None:
        return None
    return b"".join([struct.pack("=HBBI", *instruction) for instruction in _assemble(known)])


def _assemble(here: _Architecture) -> list[_Instruction]:
    program: list[_Instruction] = [
        (_LOAD, 0, 0, 4),
        (_IF_EQUAL, 1, 0, here.audit),
        # Block programs for another architecture, because their system call numbers differ.
        (_RETURN, 0, 0, _EPERM),
        (_LOAD, 0, 0, 0),
    ]
    if here.column == 0:
        program += [(_IF_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _EPERM)]
    for numbers in BLOCKED.values():
        program += [(_IF_EQUAL, 0, 1, numbers[here.column]), (_RETURN, 0, 0, _EPERM)]
    return [
        *program,
        # The flags of clone3 are behind a pointer, which a filter cannot follow. If clone3 returns
        # ENOSYS, the C library falls back to clone, whose flags are its first argument.
        (_IF_EQUAL, 0, 1, here.clone3), (_RETURN, 0, 0, _ENOSYS),
        (_IF_EQUAL, 0, 4, here.clone), (_LOAD, 0, 0, 16),
        (_IF_BITS, 0, 1, _CLONE_NEWUSER), (_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW),
        (_IF_EQUAL, 0, 4, here.ioctl), (_LOAD, 0, 0, 24),
        (_IF_EQUAL, 1, 0, _TIOCSTI), (_IF_EQUAL, 0, 1, _TIOCLINUX), (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]  # fmt: skip
