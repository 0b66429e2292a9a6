"""Proves the arithmetic of the core for every value up to 2^64, with z3.

    tests/arithmetic.sh        builds the binary `cachalot-arithmetic`, and runs this file with it

Each function of the core is a formula over bit vectors of 64 bits here, with the constants of the binary. Three checks tie the
formulas to the code: the binary evaluates its functions on boundaries and random numbers, and the formulas must agree; the
binary compares its functions with their definitions for every size below 2^32; and a formula without a function in the binary
names the lines that it stands for, which must be in the source.
"""

import csv
import random
import subprocess
import sys
import time
from pathlib import Path

from z3 import (
    UGE,
    UGT,
    ULE,
    ULT,
    And,
    BitVec,
    BitVecVal,
    BVAddNoOverflow,
    If,
    Implies,
    LShR,
    Not,
    Or,
    Solver,
    UDiv,
    URem,
    simplify,
    unsat,
)

ROOT = Path(__file__).resolve().parent.parent.parent
BITS = 64
BINARY = sys.argv[1]
C = {
    name: int(value)
    for name, value in (
        line.split() for line in subprocess.run([BINARY, "constants"], capture_output=True, text=True, check=True).stdout.splitlines()
    )
}


def word(value):
    """A number as a bit vector."""
    return BitVecVal(value, BITS)


def ilog2(bits):
    """The number of the highest set bit, as `u64::ilog2`: each step looks at the upper half that is left."""
    log2, left = word(0), bits
    for shift in (32, 16, 8, 4, 2, 1):
        upper = LShR(left, shift)
        log2 = If(upper != 0, log2 + shift, log2)
        left = If(upper != 0, upper, left)
    return log2


def no_overflow(one, other):
    return BVAddNoOverflow(one, other, False)


# The formulas: functions of the binary, by name.


def round_up(bytes_, step):
    return (bytes_ + (step - 1)) & ~(step - 1)


def round_step(bytes_, divisions):
    """The step to which `divide` rounds."""
    power = word(1) << ilog2(bytes_)
    divided = And(UGT(divisions, 1), UGT(bytes_, word(C["UNIT"]) * divisions))
    return If(divided, LShR(power, ilog2(divisions)), word(C["UNIT"]))


def round_size(bytes_, divisions):
    return round_up(bytes_, round_step(bytes_, divisions))


def segment_size(size):
    own = round_up(size, word(C["SEGMENT_STEP"]))
    large = If(ULT(size, C["OWN_SEGMENT_MIN"]), word(C["LARGE_SEGMENT"]), own)
    return If(ULE(size, C["SMALL_MAX"]), word(C["SMALL_SEGMENT"]), large)


def bin_of(size):
    units = UDiv(size, word(C["GRAIN"]))
    shift = ilog2(units | (C["EXACT"] // 2)) - C["STEPS_LOG2"]
    return URem((shift << C["STEPS_LOG2"]) + LShR(units, shift), word(C["BINS"]))


def class_round_up(bytes_):
    last = (bytes_ - 1) | (C["UNIT"] - 1)
    return (last | ((word(1) << (ilog2(last) - 1)) - 1)) + 1


def class_round_down(bytes_):
    half = word(1) << (ilog2(bytes_) - 1)
    return bytes_ & ~(half - 1) & ~word(C["UNIT"] - 1)


def class_of(size):
    log2 = ilog2(size | 1)
    first = (C["UNIT"].bit_length() - 1) * 2 + 2
    return log2 * 2 + LShR(size, log2 - 1) - first


def class_divide(bytes_, size):
    half_log2 = ilog2(size) - 1
    halves = LShR(bytes_, half_log2)
    return If(LShR(size, half_log2) & 1 == 1, UDiv(halves, word(3)), UDiv(halves, word(2)))


# The formulas of lines in the source.

PAGE_LOG2 = 21
NUMBER_BITS = 24
NO_HEAP = 1 << 31
SHARED = 2**32 - 2
NO_OWNER = 2**32 - 1
MAX_DEVICES = 127
DIGIT_BITS = 5
MIN_BLOCK = 1 << 10
MOST_STEPS = 64

SOURCE = {
    "core/src/page_map.rs": [
        "const PAGE_LOG2: u32 = 21;",
        "const NUMBER_BITS: u32 = 24;",
        "const NO_HEAP: u32 = 1 << 31;",
        "const SHARED: u32 = u32::MAX - 1;",
        "const NO_OWNER: u32 = u32::MAX;",
        "pub(crate) const MAX_DEVICES: usize = 127;",
        "base.0 >> PAGE_LOG2..=(base.0 + (bytes - 1)) >> PAGE_LOG2",
        "Self(bit | device << NUMBER_BITS | number)",
        "HeapRef { device: self.0 >> NUMBER_BITS, heap: self.0 & ((1 << NUMBER_BITS) - 1) }",
        "(self.0 & NO_HEAP == 0).then_some(heap)",
        "let device = (word & !NO_HEAP) >> NUMBER_BITS;",
    ],
    "core/src/heap/free_index.rs": ["Key { major: size / GRAIN, minor: addr.div_ceil(GRAIN) }"],
    "core/src/tables/radix_tree.rs": [
        "u128::from(key.major) << 64 | u128::from(key.minor)",
        "(word >> (shift % 64)) as usize % FAN_OUT",
        "let (word, base) = if major == 0 { (minor, 0) } else { (major, 64) };",
        "let bit = (word | 1).ilog2() as u8;",
        "base + (bit - bit % DIGIT_BITS)",
    ],
    "policies/src/buddy/mod.rs": [
        "2 << ((bytes - 1) | (MIN_BLOCK - 1)).ilog2()",
        "const MIN_BLOCK_LOG2: u32 = 10;",
        "size.trailing_zeros() - MIN_BLOCK_LOG2",
    ],
    "policies/src/slab.rs": ["pub(crate) const LARGEST_MAX: u64 = SLAB_BYTES / 4;"],
    "core/src/arena/paging/ranges/table.rs": [
        "let first = begin.saturating_sub(self.at).min(self.bytes) / step;",
        "let last = end.saturating_sub(self.at).min(self.bytes) / step;",
        "below(last) & !below(first)",
        "if count >= MOST_STEPS { u64::MAX } else { (1 << count) - 1 }",
    ],
    "core/src/heap/split_rules.rs": [
        "block >= self.max_split && (size < self.max_split || block >= size + self.max_non_split_rounding)",
        "remaining >= u64::from(self.min_rest).max(size.min(self.ample_rest)) && size < self.whole_from",
    ],
}


def buddy_round(bytes_):
    return word(2) << ilog2((bytes_ - 1) | (MIN_BLOCK - 1))


def div_ceil(value, by):
    return UDiv(value, word(by)) + If(URem(value, word(by)) == 0, word(0), word(1))


def fork(major, minor):
    """The shift of the highest digit in which two keys differ, from the differing bits of their words."""
    of = If(major == 0, minor, major)
    bit = ilog2(of | 1)
    return If(major == 0, word(0), word(64)) + bit - URem(bit, word(DIGIT_BITS))


def digit(major, minor, shift):
    of = If(ULT(shift, 64), minor, major)
    return URem(LShR(of, URem(shift, word(64))), word(32))


def below(count):
    return If(UGE(count, MOST_STEPS), word(2**64 - 1), (word(1) << count) - 1)


def saturating_sub(one, other):
    return If(ULT(one, other), word(0), one - other)


def least(one, other):
    return If(ULT(one, other), one, other)


def greatest(one, other):
    return If(ULT(one, other), other, one)


def range_bits(at, bytes_, begin, end, log2):
    """The division by a step, which is a power of two, is a shift."""
    first = LShR(least(saturating_sub(begin, at), bytes_), log2)
    last = LShR(least(saturating_sub(end, at), bytes_), log2)
    return below(last) & ~below(first)


# The proofs.

b, d, s, t, x, y, k, n = (BitVec(name, BITS) for name in ("b", "d", "s", "t", "x", "y", "k", "n"))
power_of_two = lambda value: And(value != 0, value & (value - 1) == 0)
request = lambda bytes_: And(UGE(bytes_, 1), ULT(bytes_, C["MAX_REQUEST"]))
unit_multiple = lambda size: size & (C["UNIT"] - 1) == 0
divisions = lambda value: And(power_of_two(value), ULE(value, 2**31))
in_bin = C["EXACT"] * C["GRAIN"]


def in_doubling(bytes_, log2):
    """Sizes from a power of two up to the next; for 0, all sizes below a unit."""
    return And(UGE(bytes_, 2**log2), ULT(bytes_, 2 << log2 if log2 else C["UNIT"]))


def rounded_in(bytes_, divisions_, log2):
    """`round_size` of a size whose doubling is known: its step is then a power of two that the divisions alone choose."""
    divided = And(UGT(divisions_, 1), UGT(bytes_, word(C["UNIT"]) * divisions_))
    step = word(C["UNIT"])
    for divisions_log2 in range(1, max(1, log2 - 8)):
        step = If(And(divided, divisions_ == 2**divisions_log2), word(2 ** (log2 - divisions_log2)), step)
    return round_up(bytes_, step)


def is_class(size):
    """A power of two or a midpoint, and no half unit."""
    low = size & (size - 1)
    midpoint = And(low != 0, low & (low - 1) == 0, size & ~low == LShR(low, 1))
    return And(UGE(size, C["UNIT"]), size & (C["UNIT"] - 1) == 0, Or(low == 0, midpoint))


PROOFS = [
    (
        "round_up: a sum below 2^61, at least the bytes, less than a step more, a multiple",
        And(power_of_two(s), ULE(s, C["MAX_REQUEST"]), ULE(b, C["MAX_REQUEST"])),
        And(
            no_overflow(b, s - 1),
            UGE(round_up(b, s), b),
            ULT(round_up(b, s) - b, s),
            round_up(b, s) & (s - 1) == 0,
        ),
    ),
    (
        "round_size: a multiple of 512, at least the bytes, at most 2^60",
        And(request(b), divisions(d)),
        And(UGE(round_size(b, d), b), unit_multiple(round_size(b, d)), ULE(round_size(b, d), C["MAX_REQUEST"])),
    ),
    (
        "round_size: less than a step more, and the step a power of two of at least 512",
        And(request(b), divisions(d)),
        And(
            power_of_two(round_step(b, d)),
            UGE(round_step(b, d), C["UNIT"]),
            ULT(round_size(b, d) - b, round_step(b, d)),
        ),
    ),
    *[
        (
            f"round_size: monotone among the sizes of {what} 2^{log2} bytes, and at most the next power of two",
            And(ULE(b, x), *[in_doubling(value, log2) for value in (b, x)], divisions(d)),
            And(
                ULE(rounded_in(b, d, log2), rounded_in(x, d, log2)),
                ULE(rounded_in(x, d, log2), max(C["UNIT"], 2 << log2)),
                UGE(rounded_in(x, d, log2), C["UNIT"]),
            ),
        )
        for log2, what in [(0, "less than"), *((log2, "the doubling from") for log2 in range(9, 60))]
    ],
    (
        "segment_size: at least the block, a multiple of 2 MiB, and no overflow",
        ULE(s, C["MAX_REQUEST"]),
        And(
            UGE(segment_size(s), s),
            segment_size(s) & (C["SEGMENT_STEP"] - 1) == 0,
            no_overflow(s, word(C["SEGMENT_STEP"] - 1)),
        ),
    ),
    ("bin_of: monotone in the size, up to 2^64", ULE(s, t), ULE(bin_of(s), bin_of(t))),
    (
        "bin_of: the remainder changes nothing, up to 2^64",
        True,
        ULT((ilog2(UDiv(s, word(C["GRAIN"])) | (C["EXACT"] // 2)) - C["STEPS_LOG2"] << C["STEPS_LOG2"])
            + LShR(UDiv(s, word(C["GRAIN"])), ilog2(UDiv(s, word(C["GRAIN"])) | (C["EXACT"] // 2)) - C["STEPS_LOG2"]),
            C["BINS"]),
    ),
    (
        "bin_of: the number of units below 32 KiB",
        ULT(s, in_bin),
        bin_of(s) == UDiv(s, word(C["GRAIN"])),
    ),
    (
        "bin_of: two sizes of a bin differ by less than a 64th of the smaller, and by less than 256 bytes below 32 KiB",
        And(ULE(s, t), bin_of(s) == bin_of(t)),
        If(ULT(s, in_bin), ULT(t - s, C["GRAIN"]), ULE(t - s, LShR(s, 6))),
    ),
    (
        "best-fit key: ordered as (size, address), for sizes in units and addresses up to 2^64 - 1 a unit apart",
        And(s & (C["GRAIN"] - 1) == 0, t & (C["GRAIN"] - 1) == 0, ULT(x, y), UGE(y - x, C["GRAIN"])),
        And(
            ULT(div_ceil(x, C["GRAIN"]), div_ceil(y, C["GRAIN"])),
            ULT(s, t) == ULT(UDiv(s, word(C["GRAIN"])), UDiv(t, word(C["GRAIN"]))),
        ),
    ),
    (
        "radix tree: keys differ in the digit at their fork, and in none above",
        Or(s != t, x != y),
        And(
            digit(s, x, fork(s ^ t, x ^ y)) != digit(t, y, fork(s ^ t, x ^ y)),
            Implies(
                And(UGT(k, fork(s ^ t, x ^ y)), ULT(k, 128), URem(URem(k, word(64)), word(DIGIT_BITS)) == 0),
                digit(s, x, k) == digit(t, y, k),
            ),
        ),
    ),
    (
        "radix tree: the digit at the fork orders the keys",
        Or(ULT(s, t), And(s == t, ULT(x, y))),
        ULT(digit(s, x, fork(s ^ t, x ^ y)), digit(t, y, fork(s ^ t, x ^ y))),
    ),
    (
        "geometric classes: round_up gives a class of at least the bytes, at most twice as many beyond 512",
        And(UGE(b, 1), ULE(b, 2**62)),
        And(
            UGE(class_round_up(b), b),
            is_class(class_round_up(b)),
            Implies(UGE(b, C["UNIT"]), ULE(class_round_up(b) - b, b)),
            Implies(UGE(b, 2 * C["UNIT"]), ULE(class_round_up(b) - b, LShR(b, 1))),
        ),
    ),
    (
        "geometric classes: no class lies between the bytes and their rounded size",
        And(UGE(b, 1), ULE(b, 2**62), UGE(s, b), ULE(s, 2**62), is_class(s)),
        ULE(class_round_up(b), s),
    ),
    (
        "geometric classes: round_down gives the last class of at most the bytes",
        And(UGE(b, C["UNIT"]), UGE(s, C["UNIT"]), ULE(s, b), is_class(s)),
        And(is_class(class_round_down(b)), ULE(class_round_down(b), b), ULE(s, class_round_down(b))),
    ),
    (
        "geometric classes: the numbers of classes follow the sizes",
        And(is_class(s), is_class(t)),
        ULT(s, t) == ULT(class_of(s), class_of(t)),
    ),
    (
        "buddy: round gives a power of two of at least 1 KiB and at least the bytes, less than twice as many",
        And(UGE(b, 1), ULE(b, 2**63)),
        And(
            power_of_two(buddy_round(b)),
            UGE(buddy_round(b), b),
            UGE(buddy_round(b), MIN_BLOCK),
            Implies(UGT(b, MIN_BLOCK), ULT(LShR(buddy_round(b), 1), b)),
        ),
    ),
    (
        "page map: the pages of a range have exactly its addresses, while its end is at most 2^64",
        And(UGE(b, 1), no_overflow(x, b - 1), UGE(y, x), ULE(y, x + (b - 1))),
        And(
            UGE(LShR(y, PAGE_LOG2), LShR(x, PAGE_LOG2)),
            ULE(LShR(y, PAGE_LOG2), LShR(x + (b - 1), PAGE_LOG2)),
        ),
    ),
    (
        "page map: ranges of whole pages share no page unless they overlap",
        And(
            UGE(b, 1), UGE(t, 1), no_overflow(x, b), no_overflow(y, t),
            x & (2**PAGE_LOG2 - 1) == 0, y & (2**PAGE_LOG2 - 1) == 0,
            (x + b) & (2**PAGE_LOG2 - 1) == 0, (y + t) & (2**PAGE_LOG2 - 1) == 0,
            ULE(x + b, y),
        ),
        ULT(LShR(x + b - 1, PAGE_LOG2), LShR(y, PAGE_LOG2)),
    ),
    (
        "page map: an owner's word is none of the reserved words, and gives the owner back",
        And(ULT(d, MAX_DEVICES), ULT(n, 2**NUMBER_BITS), Or(k == 0, k == NO_HEAP)),
        And(
            (k | d << NUMBER_BITS | n) != SHARED,
            (k | d << NUMBER_BITS | n) != NO_OWNER,
            LShR((k | d << NUMBER_BITS | n) & ~word(NO_HEAP), NUMBER_BITS) == d,
            (k | d << NUMBER_BITS | n) & (2**NUMBER_BITS - 1) == n,
            ((k | d << NUMBER_BITS | n) & NO_HEAP == 0) == (k == 0),
        ),
    ),
    *[
        (
            f"ranges: bit n of a mask stands for exactly the steps of {1 << log2 - 20} MiB between begin and end, for 64 steps",
            And(
                *[value & (2**log2 - 1) == 0 for value in (x, y, t, b)],
                UGE(b, 2**log2), ULE(b, MOST_STEPS << log2), ULT(x, 2**57), ULE(y, t), ULT(t, 2**57), ULT(n, LShR(b, log2)),
            ),
            (LShR(range_bits(x, b, y, t, log2), n) & 1 == 1) == And(UGE(x + (n << log2), y), ULT(x + (n << log2), t)),
        )
        for log2 in (21, 22, 24)
    ],
    (
        "split rules: the sums of a request and its rounding do not overflow",
        And(ULE(s, C["MAX_REQUEST"]), ULE(t, C["MAX_REQUEST"])),
        no_overflow(s, t),
    ),
    (
        "split rules: a rest that is split off is a block of at least the least rest",
        And(UGE(x, greatest(word(C["UNIT"]), least(s, y)))),
        And(UGE(x, C["UNIT"]), Or(UGE(x, s), UGE(x, y))),
    ),
]

# The value of `class_divide` for each half of a power of two, which makes the divisors constant.
for log2 in range(C["UNIT"].bit_length() - 1, 21):
    for size in (2**log2, 2**log2 // 2 * 3):
        if size % C["UNIT"] == 0:
            PROOFS.append((
                f"geometric classes: divide by {size} is the division, up to 2^64",
                True,
                class_divide(b, word(size)) == UDiv(b, word(size)),
            ))

FORMULAS = {
    "round_size": (round_size, lambda: (requests(), 2 ** random.randrange(12))),
    "segment_size": (segment_size, lambda: (requests(),)),
    "bin_of": (bin_of, lambda: (numbers(64),)),
    "class_round_up": (class_round_up, lambda: (numbers(62) + 1,)),
    "class_round_down": (class_round_down, lambda: (numbers(63) + C["UNIT"],)),
    "class_of": (class_of, lambda: (classes(),)),
    "class_divide": (class_divide, lambda: (numbers(64), classes())),
}


def numbers(bits):
    """A number of at most so many bits: a random length, or close to a power of two."""
    length = random.randrange(1, bits + 1)
    if random.random() < 0.5:
        return random.getrandbits(length)
    return max(0, min(2**bits - 1, 2**length + random.randrange(-3, 4)))


def requests():
    return min(C["MAX_REQUEST"] - 1, numbers(60) + 1)


def classes():
    log2 = random.randrange(C["UNIT"].bit_length(), 62)
    return random.choice([2**log2, 2**log2 // 2 * 3])


def check_values(count):
    """Compares the formulas with the functions of the binary."""
    random.seed(1)
    asked = [(name, arguments()) for name, (_, arguments) in FORMULAS.items() for _ in range(count)]
    lines = "".join(f"{name} {' '.join(map(str, numbers_))}\n" for name, numbers_ in asked)
    answers = subprocess.run([BINARY, "values"], input=lines, capture_output=True, text=True, check=True).stdout.split()
    for (name, numbers_), answer in zip(asked, answers, strict=True):
        formula = simplify(FORMULAS[name][0](*map(word, numbers_))).as_long()
        assert formula == int(answer), f"{name}{numbers_} is {answer} in the code and {formula} in the formula"
        if name == "round_size":
            log2 = max(0, numbers_[0].bit_length() - 1)
            in_doubling = simplify(rounded_in(*map(word, numbers_), log2)).as_long()
            assert in_doubling == int(answer), f"{name}{numbers_} is {answer} in the code and {in_doubling} in its doubling"
    return len(asked)


def check_source():
    """Checks that the lines that formulas stand for are in the source."""
    for name, lines in SOURCE.items():
        text = (ROOT / name).read_text()
        for line in lines:
            assert line in text, f"{name} no longer has `{line}`: change the formula and this line"
    return sum(map(len, SOURCE.values()))


def prove(assumed, claim):
    """Returns None, or values against the claim."""
    solver = Solver()
    solver.set("timeout", 60_000)
    solver.add(assumed, Not(claim))
    found = solver.check()
    return None if found == unsat else (solver.model() if str(found) == "sat" else found)


def main():
    print(f"{check_source()} lines of the source are those of the formulas", file=sys.stderr)
    print(f"{check_values(500)} values are those of the code", file=sys.stderr)
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["claim", "seconds", "proven"])
    wrong = 0
    only = sys.argv[2:]
    for name, assumed, claim in PROOFS:
        if only and not any(part in name for part in only):
            continue
        begun = time.monotonic()
        against = prove(assumed, claim)
        wrong += against is not None
        table.writerow([name, f"{time.monotonic() - begun:.1f}", "yes" if against is None else f"no: {against}"])
        sys.stdout.flush()
    return 1 if wrong else 0


sys.exit(main())
