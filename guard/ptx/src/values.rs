//! Instructions that compute block indices and grid sizes of the whole launch.

use std::fmt::Write;

use crate::names::Names;
use crate::report::Form;
use crate::special::{Quantity, Values};

/// Declares registers for `values` and for intermediate results.
pub(crate) fn declare(names: &Names, values: Values) -> String {
    let mut text = String::new();
    for (quantity, axis) in values.iter() {
        line(&mut text, &format!(".reg .b32 {};", names.register(quantity, axis)));
    }
    if !values.is_empty() {
        for name in SCRATCH {
            line(&mut text, &format!(".reg .b32 {};", names.scratch(name)));
        }
        line(&mut text, &format!(".reg .b64 {};", names.scratch(WIDE)));
    }
    text
}

/// Computes `values` in an entry of this form.
pub(crate) fn compute(names: &Names, form: Form, values: Values) -> String {
    let mut code = Code { names, text: String::new() };
    match form {
        Form::Shifted => code.shifted(values),
        Form::Folded => code.folded(values),
    }
    code.text
}

/// Loads `values` from the parameters of a function.
pub(crate) fn load(names: &Names, values: Values) -> String {
    let mut text = String::new();
    for (quantity, axis) in values.iter() {
        let register = names.register(quantity, axis);
        let parameter = names.value(quantity, axis);
        line(&mut text, &format!(".reg .b32 {register};"));
        line(&mut text, &format!("ld.param.b32 {register}, [{parameter}];"));
    }
    text
}

struct Code<'n> {
    names: &'n Names,
    text: String,
}

impl Code<'_> {
    fn shifted(&mut self, values: Values) {
        for (quantity, axis) in values.iter() {
            let register = self.names.register(quantity, axis);
            match quantity {
                Quantity::BlockIndex => {
                    let axis_name = crate::names::AXES[axis];
                    let first = self.names.scratch(WORD);
                    self.line(&format!("mov.u32 {register}, %ctaid.{axis_name};"));
                    self.load(&first, axis);
                    self.line(&format!("add.u32 {register}, {register}, {first};"));
                }
                Quantity::GridSize => self.load(&register, 3 + axis),
            }
        }
    }

    fn folded(&mut self, values: Values) {
        let [flat, rest, word] = [FLAT, REST, WORD].map(|name| self.names.scratch(name));
        let [x, y, z] = [0, 1, 2].map(|axis| self.names.register(Quantity::BlockIndex, axis));
        let reads = values.axes(Quantity::BlockIndex);
        if reads.contains(&true) {
            if reads[0] {
                self.load_pair([&word, &x], FIRST_AND_MINUS_X);
            } else {
                self.load(&word, FIRST_AND_MINUS_X);
            }
            self.line(&format!("mov.u32 {flat}, %ctaid.x;"));
            self.line(&format!("add.u32 {flat}, {flat}, {word};"));
            self.divide(&rest, &flat, BY_X);
        }
        if reads[0] {
            self.line(&format!("mad.lo.u32 {x}, {rest}, {x}, {flat};"));
        }
        if reads[1] || reads[2] {
            let z = if reads[2] { z } else { flat };
            self.divide(&z, &rest, BY_Y);
            if reads[1] {
                self.load(&word, MINUS_Y);
                self.line(&format!("mad.lo.u32 {y}, {z}, {word}, {rest};"));
            }
        }
        for axis in 0..3 {
            if values.has(Quantity::GridSize, axis) {
                let register = self.names.register(Quantity::GridSize, axis);
                self.load(&register, SIZES + axis);
            }
        }
    }

    /// `quotient = number / divisor`, whose multiplier and shift begin at `word`.
    fn divide(&mut self, quotient: &str, number: &str, word: usize) {
        let [multiplier, shift, wide] = [WORD, OTHER, WIDE].map(|name| self.names.scratch(name));
        self.load_pair([&multiplier, &shift], word);
        self.line(&format!("mul.wide.u32 {wide}, {number}, {multiplier};"));
        self.line(&format!("shr.u64 {wide}, {wide}, {shift};"));
        self.line(&format!("cvt.u32.u64 {quotient}, {wide};"));
    }

    /// Loads two words of the added parameter. The first must be at a multiple of 8 bytes.
    fn load_pair(&mut self, [first, second]: [&str; 2], word: usize) {
        let parameter = self.names.parameter();
        let offset = word * 4;
        self.line(&format!("ld.param.v2.u32 {{{first}, {second}}}, [{parameter}+{offset}];"));
    }

    /// Loads a word of the added parameter.
    fn load(&mut self, register: &str, word: usize) {
        let parameter = self.names.parameter();
        self.line(&format!("ld.param.u32 {register}, [{parameter}+{}];", word * 4));
    }

    fn line(&mut self, instruction: &str) {
        line(&mut self.text, instruction);
    }
}

fn line(text: &mut String, statement: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "\t{statement}");
}

const FLAT: &str = "flat";
const REST: &str = "rest";
const WORD: &str = "word";
const OTHER: &str = "other";
const WIDE: &str = "wide";
const SCRATCH: [&str; 4] = [FLAT, REST, WORD, OTHER];

/// Indices into [`Fold::words`](crate::Fold::words).
const FIRST_AND_MINUS_X: usize = 0;
const BY_X: usize = 2;
const BY_Y: usize = 4;
const MINUS_Y: usize = 6;
const SIZES: usize = 7;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::fold::{Fold, shifted_words};

    const EVERY: [(Quantity, usize); 6] = Values::ALL;

    fn set(of: &[(Quantity, usize)]) -> Values {
        of.iter().fold(Values::default(), |all, (quantity, axis)| {
            all.with(Values::one(*quantity, *axis))
        })
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
        let registers = execute(&compute(&names, form, values), block, words);
        for ((quantity, axis), expected) in EVERY.into_iter().zip(expected) {
            if values.has(quantity, axis) {
                let found = registers[&names.register(quantity, axis)];
                assert_eq!(found, u64::from(expected), "{form} {values:?} {quantity:?} {axis}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_block_of_a_shifted_chunk_sees_its_place_in_the_whole_launch(
            grid in any::<[u32; 3]>(), at in any::<[u32; 3]>(), by in any::<[u32; 3]>(), which in 1..64_usize,
        ) {
            let which: Vec<_> =
                EVERY.into_iter().enumerate().filter(|(bit, _)| which >> bit & 1 == 1).map(|it| it.1).collect();
            let first = [0, 1, 2].map(|axis| by[axis].min(at[axis]));
            let block = [0, 1, 2].map(|axis| at[axis] - first[axis]);
            let expected = [at[0], at[1], at[2], grid[0], grid[1], grid[2]];
            is_right(Form::Shifted, set(&which), block, &shifted_words(grid, first), expected);
        }

        #[test]
        fn a_block_of_a_folded_chunk_sees_its_place_in_the_whole_launch(
            sizes in [1_u32..3000, 1..3000, 1..3000], swap in 0..4_usize, large: u32,
            at: u32, by: u32, which in 1..64_usize,
        ) {
            let which: Vec<_> =
                EVERY.into_iter().enumerate().filter(|(bit, _)| which >> bit & 1 == 1).map(|it| it.1).collect();
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
            is_right(Form::Folded, set(&which), [at - first, 0, 0], &fold.words(first), expected);
        }
    }
}
