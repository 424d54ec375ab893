"""What scripts/gpu_resources.py finds wrong with a kernel, on PTX and ELF files made here.

The kernels themselves are judged by `make gpu-resources`, which needs nvcc.
"""

from __future__ import annotations

import re
import struct

import gpu_resources
import pytest

POLICY = {"kHeads": 2}
SPELLED_OUT = "// begin inline asm\n{}\n// end inline asm\n"
LOAD = "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];\n"
STORE = SPELLED_OUT.format("st.global.v4.b32 [%rd1], {%r1, %r2, %r3, %r4};")
WAIT = "griddepcontrol.wait;\n"
GOOD = WAIT + LOAD * 6 + STORE
NO_WAIT = LOAD * 6 + STORE
NARROW_STORE = SPELLED_OUT.format("st.global.b32 [%rd1], %r1;")
OTHERS = """
ld.param.u64 %rd1, [p];
ld.global.u64 %rd2, [%rd1];
ld.shared.u32 %r1, [%r2];
st.shared.u32 [%r1], %r2;
st.local.u32 [%r1], %r2;
"""


def kernel(
    body: str, name: str = "RotaryThread<float, 4, true>", registers: int = 128,
    spilled: int = 0, instructions: int = 3000, architecture: str = "sm_90",
) -> gpu_resources.Kernel:  # fmt: skip
    code = gpu_resources.code_of(".maxntid 256, 1, 1\n.minnctapersm 2\n" + OTHERS + body)
    return gpu_resources.Kernel(name, architecture, registers, 0, spilled, instructions, code)


def test_as_it_should_be():
    assert list(kernel(GOOD).faults(POLICY)) == []


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        ({"registers": 129}, "blocks on a multiprocessor: expected at least 2, got 1"),
        ({"spilled": 8}, "bytes of registers in memory: expected at most 0, got 8"),
        ({"instructions": 3501}, "instructions: expected at most 3500, got 3501"),
        ({"body": NO_WAIT}, "waits for the kernel before: expected at least 1, got 0"),
        ({"body": GOOD.replace(LOAD, "", 1)}, "loads of 16 bytes: expected at least 6, got 5"),
        (
            {"body": WAIT + LOAD * 6 + NARROW_STORE},
            "stores of 16 bytes: expected at least 1, got 0",
        ),
        (
            {"name": "NewThread<float, 4>"},
            "limits: expected some in LIMITS of scripts/gpu_resources.py, got none",
        ),
    ],
)
def test_planted_mistakes(planted, fault):
    assert list(kernel(**{"body": GOOD} | planted).faults(POLICY)) == [fault]


@pytest.mark.parametrize(
    ("instruction", "what"),
    [
        ("ld.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];", "loads from memory of any kind"),
        # What the compiler does with an assignment: to global memory, or to any.
        ("st.global.v2.f32 [%rd1], {%f1, %f2};", "stores that packet.cuh does not make"),
        ("st.u32 [%rd1], %r1;", "stores that packet.cuh does not make"),
        ("ld.global.nc.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];", "non-coherent loads"),
        ("mul.f64 %fd1, %fd2, %fd3;", "float64 operations"),
    ],
)
def test_planted_instructions(instruction, what):
    found = list(kernel(f"{GOOD}{instruction}\n").faults(POLICY))
    assert found == [f"{what}: expected at most 0, got 1"]


PIECES = """
$L_y:
$L_x:
{}
@%p1 bra $L_x;
@%p2 bra $L_y;
ret;
"""
ROUNDS = """
bar.sync 0;
bra.uni $L_first;
$L_round:
{}
$L_first:
{}
@%p3 bra $L_round;
@%p4 bra $L_after;
bar.sync 0;
$L_after:
"""

LOOP_IN_A_LOOP = """
$L_a:
$L_b:
bar.sync 0;
@%p5 bra $L_c;
bar.red.or.pred %p6, 0, %p7;
bra $L_b;
$L_c:
bar.sync 0;
@%p8 bra $L_a;
"""


@pytest.mark.parametrize(
    ("inside", "depths"),
    [
        ("bar.sync 0;", [2]),
        (ROUNDS.format("add.s32 %r1, %r1, 1;", "bar.warp.sync -1;"), [2, 2]),
        (ROUNDS.format("bar.sync 0;", ""), [2, 3, 2]),
        (ROUNDS.format("", "barrier.sync 0;"), [2, 3, 2]),
        # A loop that is left from its middle, within another.
        (LOOP_IN_A_LOOP, [4, 4, 3]),
    ],
)
def test_barriers_in_loops(inside, depths):
    assert gpu_resources.barrier_depths(PIECES.format(inside)) == depths


def test_a_barrier_in_a_loop_of_a_piece_is_a_fault():
    body = GOOD + PIECES.format(ROUNDS.format("bar.sync 0;", ""))
    assert list(kernel(body).faults(POLICY)) == [
        "barriers in loops of a piece: expected at most 0, got 1"
    ]


def test_kernels_of_float64_compute_in_it():
    body = GOOD + "mul.f64 %fd1, %fd2, %fd3;\n"
    assert list(kernel(body, "RotaryThread<double, 2, true>").faults(POLICY)) == []


def test_before_9_0_kernels_have_nothing_to_wait_with():
    assert list(kernel(NO_WAIT, architecture="sm_80").faults(POLICY)) == []


def test_machine_code_is_made_of_ptx_that_can_wait_from_9_0_on():
    """A kernel that does not wait reads what the one before it has not written yet."""
    text = (gpu_resources.ROOT / "cmake/Cuda.cmake").read_text()
    lines = re.findall(r"set\(gpus_(\d+) ([\d ]+)\)", text)
    made_of = {int(gpu): int(ptx) for ptx, gpus in lines for gpu in gpus.split()}
    assert {80, 90, 100, 120} <= set(made_of)
    first = gpu_resources.FIRST_TO_WAIT
    assert [gpu for gpu, ptx in made_of.items() if gpu >= first > ptx] == []


def test_constants_are_those_of_the_policy():
    constants = gpu_resources.constants()
    assert constants["kHeads"] >= 1
    assert constants["kThreads"] == 256


@pytest.mark.parametrize(("version", "flags"), [(8, 0x6005A04), (7, 0x5A055A)])
def test_bytes_of_code(version, flags):
    """An ELF file of two kernels, and the section that has the names."""
    names = b"\0.text.first\0.text.second\0.shstrtab\0"
    sections = [(0, 0, 0), (1, 0, 3072), (13, 0, 160), (26, 64, len(names))]
    header = bytearray(64)
    header[8] = version
    struct.pack_into("<I", header, 48, flags)
    struct.pack_into("<Q", header, 40, 64 + len(names))
    struct.pack_into("<HHH", header, 58, 64, len(sections), 3)
    table = b"".join(
        struct.pack("<IIQQQQ", name, 1, 0, 0, offset, size).ljust(64, b"\0")
        for name, offset, size in sections
    )
    assert gpu_resources.code_bytes(bytes(header) + names + table) == {
        ("first", "sm_90"): 3072,
        ("second", "sm_90"): 160,
    }
