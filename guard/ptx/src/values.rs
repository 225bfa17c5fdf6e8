//! Templates of the instructions that compute block indices and grid sizes of the whole launch. `$` stands for the part
//! that added names share.

use crate::report::Form;
use crate::special::Values;

/// The name of each value in added registers and parameters.
pub(crate) const NAMES: [&str; 6] =
    ["ctaid_x", "ctaid_y", "ctaid_z", "nctaid_x", "nctaid_y", "nctaid_z"];

/// Declares registers for `values` and for intermediate results.
pub(crate) fn declare(values: Values) -> String {
    let own = values.iter().map(|value| format!("\t.reg .b32 %$_{};\n", NAMES[value]));
    own.chain((!values.is_empty()).then(|| INTERMEDIATE.to_owned())).collect()
}

/// Loads `values` from the parameters of a function.
pub(crate) fn load(values: Values) -> String {
    let one = |value| {
        let name = NAMES[value];
        format!("\t.reg .b32 %$_{name};\n\tld.param.b32 %$_{name}, [$_{name}];\n")
    };
    values.iter().map(one).collect()
}

/// Computes `values` in an entry of this form.
pub(crate) fn compute(form: Form, values: Values) -> String {
    match form {
        Form::Shifted => values.iter().map(shifted).collect(),
        Form::Folded => folded(values),
    }
}

fn shifted(value: usize) -> String {
    let (name, offset) = (NAMES[value], 4 * value);
    if !Values::BLOCK_INDEX.has(value) {
        return format!("\tld.param.u32 %$_{name}, [$_grid+{offset}];\n");
    }
    let special = name.replace('_', ".");
    format!(
        "\tmov.u32 %$_{name}, %{special};
\tld.param.u32 %$_word, [$_grid+{offset}];
\tadd.u32 %$_{name}, %$_{name}, %$_word;\n"
    )
}

/// The offsets are four times the indices into [`Fold::words`](crate::Fold::words).
fn folded(values: Values) -> String {
    let mut text = String::new();
    let [x, y, z] = [0, 1, 2].map(|value| values.has(value));
    if x || y || z {
        text += if x {
            "\tld.param.v2.u32 {%$_word, %$_ctaid_x}, [$_grid+0];\n"
        } else {
            "\tld.param.u32 %$_word, [$_grid+0];\n"
        };
        text += "\tmov.u32 %$_flat, %ctaid.x;\n\tadd.u32 %$_flat, %$_flat, %$_word;\n";
        text += &divide("rest", "flat", 8);
    }
    if x {
        text += "\tmad.lo.u32 %$_ctaid_x, %$_rest, %$_ctaid_x, %$_flat;\n";
    }
    let quotient = if z { "ctaid_z" } else { "flat" };
    if y || z {
        text += &divide(quotient, "rest", 16);
    }
    if y {
        text += "\tld.param.u32 %$_word, [$_grid+24];\n";
        text += &format!("\tmad.lo.u32 %$_ctaid_y, %$_{quotient}, %$_word, %$_rest;\n");
    }
    for value in values.only(Values::GRID_SIZE).iter() {
        let offset = 28 + 4 * (value - 3);
        text += &format!("\tld.param.u32 %$_{}, [$_grid+{offset}];\n", NAMES[value]);
    }
    text
}

/// `quotient = number / divisor`, whose multiplier and shift are at `offset`, a multiple of 8.
fn divide(quotient: &str, number: &str, offset: usize) -> String {
    format!(
        "\tld.param.v2.u32 {{%$_word, %$_other}}, [$_grid+{offset}];
\tmul.wide.u32 %$_wide, %$_{number}, %$_word;
\tshr.u64 %$_wide, %$_wide, %$_other;
\tcvt.u32.u64 %$_{quotient}, %$_wide;\n"
    )
}

const INTERMEDIATE: &str = "\t.reg .b32 %$_flat;
\t.reg .b32 %$_rest;
\t.reg .b32 %$_word;
\t.reg .b32 %$_other;
\t.reg .b64 %$_wide;
";

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::fold::{Fold, shifted_words};
    use crate::names::Names;

    /// The values whose bits `which` has.
    fn set(which: usize) -> Values {
        let all = (0..6).filter(|value| which >> value & 1 == 1).map(Values::one);
        all.fold(Values::default(), Values::with)
    }

    /// Executes the instructions that entries of forms begin with, for one block.
    fn execute(code: &str, block: [u32; 3], words: &[u32]) -> HashMap<String, u64> {
        let mut registers = HashMap::new();
        for (axis, index) in ["%ctaid.x", "%ctaid.y", "%ctaid.z"].into_iter().zip(block) {
            registers.insert(axis.to_owned(), u64::from(index));
        }
        for statement in code.split(';').map(str::trim).filter(|it| !it.is_empty()) {
            let (opcode, operands) = statement.split_once(' ').expect("operands");
            let operands: Vec<&str> = operands.split(", ").collect();
            let get = |index: usize| registers[operands[index]];
            let word = |address: &str, after: usize| {
                let offset = address.strip_prefix("[__gridguard_grid+").expect("the parameter");
                let offset: usize = offset.trim_end_matches(']').parse().expect("an offset");
                u64::from(words[offset / 4 + after])
            };
            let low = |value: u64| value & u64::from(u32::MAX);
            let result = match opcode {
                "mov.u32" | "cvt.u64.u32" => get(1),
                "cvt.u32.u64" => low(get(1)),
                "add.u32" => low(get(1) + get(2)),
                "mul.wide.u32" => get(1) * get(2),
                "mad.lo.u32" => low((get(1) * get(2)).wrapping_add(get(3))),
                "shr.u64" => get(1) >> get(2),
                "ld.param.u32" => word(operands[1], 0),
                "ld.param.v2.u32" => {
                    let second = operands[1].trim_end_matches('}').to_owned();
                    registers.insert(second, word(operands[2], 1));
                    word(operands[2], 0)
                }
                other => panic!("{other}"),
            };
            registers.insert(operands[0].trim_start_matches('{').to_owned(), result);
        }
        registers
    }

    fn is_right(form: Form, values: Values, block: [u32; 3], words: &[u32], expected: [u32; 6]) {
        let names = Names::new(b"");
        let registers = execute(&names.fill(&compute(form, values)), block, words);
        for value in values.iter() {
            let found = registers[&names.fill(&format!("%$_{}", NAMES[value]))];
            assert_eq!(found, u64::from(expected[value]), "{form:?} {values:?} {value}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_block_of_a_shifted_chunk_sees_its_place_in_the_whole_launch(
            grid in any::<[u32; 3]>(), at in any::<[u32; 3]>(), by in any::<[u32; 3]>(), which in 1..64_usize,
        ) {
            let first = [0, 1, 2].map(|axis| by[axis].min(at[axis]));
            let block = [0, 1, 2].map(|axis| at[axis] - first[axis]);
            let expected = [at[0], at[1], at[2], grid[0], grid[1], grid[2]];
            is_right(Form::Shifted, set(which), block, &shifted_words(grid, first), expected);
        }

        #[test]
        fn a_block_of_a_folded_chunk_sees_its_place_in_the_whole_launch(
            sizes in [1_u32..3000, 1..3000, 1..3000], swap in 0..4_usize, large: u32,
            at: u32, by: u32, which in 1..64_usize,
        ) {
            let mut grid = sizes;
            if swap < 3 {
                grid = [1 + sizes[0] % 7, 1 + sizes[1] % 7, 1 + sizes[2] % 7];
                grid[swap] = 1 + large % (Fold::MAX_BLOCKS / 343);
            }
            let Some(fold) = Fold::new(grid) else { return Ok(()) };
            let at = at % fold.blocks();
            let first = by.min(at);
            let [x, y, _] = grid;
            let expected = [at % x, at / x % y, at / x / y, grid[0], grid[1], grid[2]];
            is_right(Form::Folded, set(which), [at - first, 0, 0], &fold.words(first), expected);
        }
    }
}
