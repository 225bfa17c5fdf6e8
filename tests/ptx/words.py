"""The words of the parameter that a form takes, as gridguard-ptx documents them."""


def shifted_words(grid, first):
    return [*first, *grid]


def divisor(number):
    """A multiplier, an addend and a shift: n // number is (n * multiplier + addend >> 32) >> shift."""
    shift = number.bit_length() - 1
    if number == 1 << shift:
        return 0xFFFF_FFFF, 0xFFFF_FFFF, shift
    down, rest = divmod(1 << 32 + shift, number)
    return (down + 1, 0, shift) if number - rest <= 1 << shift else (down, down, shift)


def folded_words(grid, first):
    return [first, *grid, *divisor(grid[0]), *divisor(grid[1])]


def block_index(words, flat):
    """The block index that the block `flat` of a flat grid sees."""
    _, x, y, _, *parts = words
    by_x, by_y = parts[:3], parts[3:]
    divide = lambda number, by: (number * by[0] + by[1] >> 32) >> by[2]
    rest = divide(flat, by_x)
    z = divide(rest, by_y)
    return flat - rest * x, rest - z * y, z


def check():
    """The values that gridguard-ptx's own tests have, and the definition at the ends of many grids."""
    assert shifted_words([1, 2, 3], [4, 5, 6]) == [4, 5, 6, 1, 2, 3]
    assert folded_words([4, 3, 2], 7) == [7, 4, 3, 2, 0xFFFF_FFFF, 0xFFFF_FFFF, 2, 0xAAAA_AAAB, 0, 1]
    assert block_index(folded_words([4, 70_000, 1], 0), 279_999) == (3, 69_999, 0)
    assert block_index(folded_words([3, 5, 286_331_153], 0), 0xFFFF_FFFE) == (2, 4, 286_331_152)
    numbers = [*range(1, 300), 641, 65_535, 65_536, 65_537, 70_001, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
    for x in numbers:
        for y in numbers:
            z = ((1 << 32) - 1) // (x * y)
            if z:
                words = folded_words([x, y, z], 0)
                for flat in {0, x - 1, min(x, x * y * z - 1), x * y - 1, x * y * z // 2, x * y * z - 1}:
                    assert block_index(words, flat) == (flat % x, flat // x % y, flat // x // y), (x, y, flat)
