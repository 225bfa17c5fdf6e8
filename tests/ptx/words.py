"""The words of the parameter of a form, as gridguard-ptx documents them."""


def shifted_words(grid, first):
    return [*first, *grid]


def divisor(number):
    """Return a multiplier and a shift. Below 2^31, n // number is n * multiplier >> shift."""
    shift = 31 + (number - 1).bit_length()
    return -(-(1 << shift) // number), shift


def folded_words(grid, first):
    minus = lambda size: (1 << 32) - size
    return [first, minus(grid[0]), *divisor(grid[0]), *divisor(grid[1]), minus(grid[1]), *grid]


def block_index(words, flat):
    """Return the block index that the block `flat` of a flat grid sees."""
    _, _, *parts, _, x, y, _ = words
    by_x, by_y = parts[:2], parts[2:]
    divide = lambda number, by: number * by[0] >> by[1]
    rest = divide(flat, by_x)
    z = divide(rest, by_y)
    return flat - rest * x, rest - z * y, z


def check():
    """Check the values of gridguard-ptx's own tests, and the definition at the ends of many grids."""
    assert shifted_words([1, 2, 3], [4, 5, 6]) == [4, 5, 6, 1, 2, 3]
    assert folded_words([4, 3, 2], 7) == [7, 0xFFFF_FFFC, 1 << 31, 33, 0xAAAA_AAAB, 33, 0xFFFF_FFFD, 4, 3, 2]
    assert block_index(folded_words([4, 70_000, 1], 0), 279_999) == (3, 69_999, 0)
    assert block_index(folded_words([2, 1024, 1 << 20], 0), 0x7FFF_FFFF) == (1, 1023, 0xF_FFFF)
    numbers = [*range(1, 300), 641, 65_535, 65_536, 65_537, 70_001, (1 << 31) - 1, 1 << 31]
    for x in numbers:
        for y in numbers:
            z = (1 << 31) // (x * y)
            if z:
                words = folded_words([x, y, z], 0)
                for flat in {0, x - 1, min(x, x * y * z - 1), x * y - 1, x * y * z // 2, x * y * z - 1}:
                    assert block_index(words, flat) == (flat % x, flat // x % y, flat // x // y), (x, y, flat)
