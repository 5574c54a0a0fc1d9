"""Test the system call filter by running it in an interpreter for BPF."""

import errno
import platform
import struct

import pytest

from dragoman.tools.seccomp import BLOCKED, build_filter

ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW = 0x7FFF0000
EPERM = 0x00050000 | errno.EPERM
ENOSYS = 0x00050000 | errno.ENOSYS
# Numbers of the system calls read, clone, clone3 and ioctl.
NUMBERS = {"x86_64": (0, 56, 435, 16), "aarch64": (63, 220, 435, 29)}


def run(program: bytes, number: int, arch: int, first: int = 0, second: int = 0) -> int:
    """Execute the filter on one system call and return its verdict."""
    data = struct.pack("=IIQ6Q", number, arch, 0, first, second, 0, 0, 0, 0)
    code = list(struct.iter_unpack("=HBBI", program))
    at = value = 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        match operation:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x15:
                at += if_true if value == operand else if_false
            case 0x35:
                at += if_true if value >= operand else if_false
            case 0x45:
                at += if_true if value & operand else if_false
            case 0x06:
                return int(operand)
            case _:
                raise AssertionError(operation)


@pytest.mark.parametrize("machine", ARCHES)
def test_seccomp_filter_blocks_exactly_the_listed_system_calls(machine: str) -> None:
    program = build_filter(machine)
    arch = ARCHES[machine]
    assert program is not None
    # The program is sent through a pipe, so it must fit into the buffer of the pipe.
    assert len(program) < 4096
    _, clone, clone3, ioctl = NUMBERS[machine]
    blocked = {numbers[machine == "aarch64"] for numbers in BLOCKED.values()}
    expected = dict.fromkeys(blocked, EPERM) | {clone3: ENOSYS}
    for number in range(600):
        assert run(program, number, arch) == expected.get(number, ALLOW), number
    assert clone not in blocked
    assert ioctl not in blocked


@pytest.mark.parametrize("machine", ARCHES)
def test_seccomp_filter_checks_the_arguments_of_clone_and_ioctl(machine: str) -> None:
    program = build_filter(machine)
    arch = ARCHES[machine]
    assert program is not None
    _, clone, _, ioctl = NUMBERS[machine]
    assert run(program, clone, arch, first=0x01200011) == ALLOW  # the flags that fork() passes
    # The flags that create a user namespace.
    assert run(program, clone, arch, first=0x10000011) == EPERM
    # TIOCGWINSZ, which reads the window size.
    assert run(program, ioctl, arch, second=0x5413) == ALLOW
    # TIOCSTI, which types into the terminal.
    assert run(program, ioctl, arch, second=0x5412) == EPERM
    # The kernel ignores the upper 32 bits of this argument.
    assert run(program, ioctl, arch, second=0x5412 | 1 << 32) == EPERM
    assert run(program, ioctl, arch, second=0x541C) == EPERM


def test_seccomp_filter_rejects_other_architectures() -> None:
    for machine, other in (
        ("x86_64", 0x40000003),
        ("x86_64", ARCHES["aarch64"]),
        ("aarch64", 0x40000028),
    ):
        program = build_filter(machine)
        assert program is not None
        assert run(program, 0, other) == EPERM
    x86 = build_filter("x86_64")
    assert x86 is not None
    assert run(x86, 0x40000000 + 101, ARCHES["x86_64"]) == EPERM  # a system call of the x32 ABI
    assert build_filter("riscv64") is None
    assert build_filter() == build_filter(platform.machine())
