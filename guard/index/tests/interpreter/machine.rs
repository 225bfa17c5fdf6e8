//! The machine of the interpreter.

use std::collections::HashMap;

use super::{Accesses, Instruction, Kernel, Operand, Thread};

impl Kernel {
    /// Runs `thread`. Values of 16 and 32 bits do not wrap if `is_exact`.
    pub(crate) fn run(&self, thread: &Thread, is_exact: bool, steps: usize) -> Accesses {
        let mut machine = Machine {
            thread,
            is_exact,
            registers: vec![0; self.registers],
            memory: HashMap::new(),
            seen: Accesses { addresses: Vec::new(), has_ended: false, steps: 0 },
        };
        let mut at = 0;
        while machine.seen.steps < steps {
            let Some(one) = self.instructions.get(at) else {
                machine.seen.has_ended = true;
                break;
            };
            machine.seen.steps += 1;
            at += 1;
            let is_on = |(register, wanted)| (machine.registers[register] != 0) == wanted;
            if one.guard.is_some_and(|guard| !is_on(guard)) {
                continue;
            }
            match &one.name[0][..] {
                "bra" => at = one.target,
                // Where it goes is not followed.
                "brx" => break,
                "ret" | "exit" | "trap" => at = usize::MAX,
                _ => machine.step(one),
            }
        }
        machine.seen
    }
}

struct Machine<'t> {
    thread: &'t Thread,
    is_exact: bool,
    registers: Vec<i128>,
    /// What the thread wrote, by state space and address.
    memory: HashMap<(&'t str, i128), i128>,
    seen: Accesses,
}

impl<'t> Machine<'t> {
    fn step(&mut self, one: &'t Instruction) {
        let opcode = &one.name[0][..];
        let bits = one.bits;
        let has = |modifier: &str| one.name.iter().any(|part| part == modifier);
        if one.is_far {
            for operand in &one.operands {
                if let Operand::Memory(Some(base), _, offset) = operand {
                    let address = self.registers[*base].wrapping_add(*offset);
                    self.seen.addresses.push(low_64(address));
                }
            }
        }
        if matches!(opcode, "st" | "red" | "bar" | "barrier" | "call" | "cp" | "membar" | "fence") {
            if let ("st", [Operand::Memory(base, _, offset), value]) = (opcode, &one.operands[..]) {
                let base = base.map_or(0, |base| self.registers[base]) + offset;
                match value {
                    Operand::List(parts) => {
                        for (at, part) in (0..).zip(parts) {
                            let value = part.map_or(0, |part| self.registers[part]);
                            self.memory
                                .insert((one.space(), base + at * i128::from(bits / 8)), value);
                        }
                    }
                    _ => {
                        let value = self.value(value, bits, true);
                        self.memory.insert((one.space(), base), value);
                    }
                }
            }
            return;
        }
        let (targets, sources) = match &one.operands[..] {
            [Operand::Register(target), sources @ ..] => (vec![Some(*target)], sources),
            [Operand::List(targets), sources @ ..] => (targets.clone(), sources),
            _ => return,
        };
        match (opcode, sources) {
            ("ld" | "ldu", [Operand::Memory(base, parameter, offset)]) => {
                let base = base.map_or(0, |base| self.registers[base]);
                for (at, target) in (0..).zip(&targets) {
                    let offset = offset + at * i128::from(bits / 8);
                    let value = match parameter {
                        Some(parameter) if has("param") => {
                            self.thread.values.get(&(*parameter, offset)).copied().unwrap_or(1)
                        }
                        _ => {
                            let known = self.memory.get(&(one.space(), base + offset)).copied();
                            let local = if has("local") { 0 } else { self.thread.loaded };
                            if let Some(known) = known.filter(|_| self.is_exact && bits < 64) {
                                self.set(*target, known, 32);
                                continue;
                            }
                            known.unwrap_or(local)
                        }
                    };
                    // A wider register has the sign.
                    let value = self.cut(value, bits, one.is_signed, false);
                    self.set(*target, value, 64);
                }
            }
            ("mov", [source]) if targets.len() > 1 => {
                let whole = low_64(self.value(source, 64, false));
                let count = u32::try_from(targets.len()).expect("few");
                for (at, target) in (0..).zip(&targets) {
                    let part = i128::from(whole) >> (at * bits / count);
                    self.set(*target, part.rem_euclid(1 << (bits / count)), 64);
                }
            }
            ("mov", [Operand::List(parts)]) => {
                let size = bits / u32::try_from(parts.len()).expect("few");
                let of = |part: &Option<usize>| part.map_or(0, |part| self.registers[part]);
                let whole = (0..).zip(parts).fold(0, |whole, (at, part)| {
                    whole | of(part).rem_euclid(1 << size) << (at * size)
                });
                self.set(targets[0], whole, 64);
            }
            ("shfl", [source, ..]) => {
                let value = self.value(source, bits, true);
                self.set(targets[0], value, bits);
                targets.iter().skip(1).for_each(|target| self.set(*target, 1, 8));
            }
            ("cvt", [source]) if !one.is_float => {
                let (to, from) = (&one.name[one.name.len() - 2], &one.name[one.name.len() - 1]);
                // Exact values keep their sign when their upper half is cut off.
                let as_signed = one.is_signed || self.is_exact && bits_of(to) < bits_of(from);
                let value = self.value(source, bits, as_signed);
                let value = if bits_of(to) < 32 {
                    self.cut(value, bits_of(to), to.starts_with('s'), false)
                } else {
                    value
                };
                self.set(targets[0], value, bits_of(to));
            }
            _ => {
                let value = self.result(one, sources);
                let bits = if has("wide") { bits * 2 } else { bits };
                self.set(targets[0], value, bits);
                targets.iter().skip(1).for_each(|target| self.set(*target, value, bits));
            }
        }
    }

    fn result(&self, one: &Instruction, sources: &[Operand]) -> i128 {
        let (opcode, bits, kind) = (&one.name[0][..], one.bits, one.name.last().expect("a type"));
        let has = |modifier: &str| one.name.iter().any(|part| part == modifier);
        // The lower bits of a result do not depend on the signs.
        let is_free = matches!(
            opcode,
            "add"
                | "sub"
                | "and"
                | "or"
                | "xor"
                | "not"
                | "shl"
                | "mov"
                | "selp"
                | "lop3"
                | "slct"
                | "redux"
        ) || matches!(opcode, "mul" | "mad") && has("lo");
        let as_signed = one.is_signed || self.is_exact && is_free;
        let mut numbers = [0; 8];
        for (at, (number, source)) in numbers.iter_mut().zip(sources).enumerate() {
            let is_sum = at == 2 && has("wide");
            *number = self.value(source, if is_sum { bits * 2 } else { bits }, as_signed);
        }
        let numbers = &numbers[..sources.len().min(8)];
        match (opcode, numbers) {
            ("setp" | "set", [a, b, rest @ ..]) => {
                let is_equal = a == b || a.wrapping_sub(*b).wrapping_abs() == 1 << bits;
                let holds = match &one.name[1][..] {
                    _ if one.is_float => false,
                    "lt" | "lo" => a < b,
                    "le" | "ls" => a <= b,
                    "gt" | "hi" => a > b,
                    "ge" | "hs" => a >= b,
                    "eq" => is_equal,
                    "ne" => !is_equal,
                    other => panic!("setp.{other}"),
                };
                let other = rest.first().is_none_or(|other| *other != 0);
                i128::from(match has("or") {
                    true => holds || !rest.is_empty() && other,
                    false => holds && other,
                })
            }
            ("atom", _) => self.thread.loaded,
            ("vote" | "activemask" | "match", _) => {
                if kind == "pred" {
                    1
                } else {
                    0x0fff_ffff
                }
            }
            ("selp", [a, b, p]) => {
                if *p != 0 {
                    *a
                } else {
                    *b
                }
            }
            ("mov" | "cvta", [a]) => *a,
            _ if one.is_float => 1,
            ("add", [a, b]) => a.wrapping_add(*b),
            ("sub", [a, b]) => a.wrapping_sub(*b),
            ("neg", [a]) => a.wrapping_neg(),
            ("abs", [a]) => a.wrapping_abs(),
            ("not", [a]) if kind == "pred" => i128::from(*a == 0),
            ("not", [a]) => !*a,
            ("and", [a, b]) => a & b,
            ("or", [a, b]) => a | b,
            ("xor", [a, b]) => a ^ b,
            ("shl", [a, b]) => a.wrapping_mul(1 << (*b).clamp(0, 64)),
            ("shr", [a, b]) => a >> (*b).clamp(0, 100),
            ("mul" | "mad", [a, b, rest @ ..]) => {
                let product = match has("hi") {
                    false => a.wrapping_mul(*b),
                    true if bits == 64 && !one.is_signed => {
                        let (a, b) = (u128::from(low_64(*a)), u128::from(low_64(*b)));
                        i128::try_from((a * b) >> 64).expect("64 bits")
                    }
                    true => a.wrapping_mul(*b) >> bits,
                };
                product.wrapping_add(rest.first().copied().unwrap_or(0))
            }
            ("div", [a, b]) => a.checked_div(*b).unwrap_or(0),
            ("rem", [a, b]) => a.checked_rem(*b).unwrap_or(0),
            ("min", [a, b]) => *a.min(b),
            ("max", [a, b]) => *a.max(b),
            ("bfe", [a, from, count]) => {
                let part = (a >> (*from).clamp(0, 64)).rem_euclid(1 << (*count).clamp(0, 64));
                let is_negative = one.is_signed && *count > 0 && part >> (count - 1) & 1 == 1;
                if is_negative { part - (1 << count) } else { part }
            }
            ("bfi", [a, b, from, count]) => {
                let (from, all) = ((*from).clamp(0, 64), (1 << (*count).clamp(0, 64)) - 1);
                b & !(all << from) | (a & all) << from
            }
            ("mul24" | "mad24", [a, b, rest @ ..]) => {
                a.wrapping_mul(*b).wrapping_add(rest.first().copied().unwrap_or(0))
            }
            ("sad", [a, b, c]) => (a - b).abs() + c,
            ("dp4a" | "dp2a", [a, b, c]) => a.rem_euclid(256) * b.rem_euclid(256) + c,
            ("slct", [a, b, c]) => *if *c >= 0 { a } else { b },
            ("lop3", [a, b, c, table]) => {
                (0..8).filter(|at| table >> at & 1 == 1).fold(0, |all, at| {
                    let of = |value: &i128, bit: i128| if at & bit == 0 { !value } else { *value };
                    all | of(a, 4) & of(b, 2) & of(c, 1)
                })
            }
            ("shf", [low, high, by]) => match has("l") {
                true => {
                    (high << by.rem_euclid(32))
                        + (low.rem_euclid(1 << 32) >> (32 - by.rem_euclid(32)))
                }
                false => {
                    (high.rem_euclid(1 << 32) << 32 | low.rem_euclid(1 << 32)) >> by.rem_euclid(32)
                }
            },
            ("redux", [a, _]) => *a,
            ("popc", [a]) => i128::from(low_64(*a).count_ones()),
            ("clz", [a]) => i128::from(low_64(*a).leading_zeros()) - 64 + i128::from(bits),
            // Any function of the operands.
            _ => numbers.iter().fold(1, |all, number| {
                (all ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rem_euclid(1 << bits.min(31))
            }),
        }
    }

    fn set(&mut self, target: Option<usize>, value: i128, bits: u32) {
        let Some(target) = target else { return };
        let keeps = self.is_exact && matches!(bits, 16 | 32);
        self.registers[target] = if keeps { value } else { value.rem_euclid(1 << bits.min(100)) };
    }

    /// The value of an operand that an instruction takes as a number of `bits`.
    fn value(&self, operand: &Operand, bits: u32, is_signed: bool) -> i128 {
        let Thread { thread, block, size, grid, .. } = self.thread;
        let linear = thread[0] + size[0] * (thread[1] + size[1] * thread[2]);
        let value = match operand {
            Operand::Register(register) => self.registers[*register],
            Operand::Number(value) => *value,
            Operand::Special(name, axis) => match &name[..] {
                "tid" => thread[*axis],
                "ctaid" => block[*axis],
                "ntid" => size[*axis],
                "nctaid" => grid[*axis],
                "laneid" => linear % 32,
                _ => linear / 32,
            },
            _ => 0,
        };
        self.cut(value, bits, is_signed, self.is_exact && matches!(bits, 16 | 32))
    }

    fn cut(&self, value: i128, bits: u32, is_signed: bool, is_exact: bool) -> i128 {
        let all = 1_i128 << bits.min(100);
        if is_exact {
            // A negative number is read as a large one, on purpose.
            return if !is_signed && value < 0 { value.rem_euclid(all) } else { value };
        }
        let low = value.rem_euclid(all);
        if is_signed && low >= all / 2 { low - all } else { low }
    }
}

fn low_64(value: i128) -> u64 {
    u64::try_from(value.rem_euclid(1 << 64)).expect("64 bits")
}

/// The bits of a type such as `u32`; predicates have room for 0 and 1.
pub(super) fn bits_of(kind: &str) -> u32 {
    let digits = kind.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    digits.split('x').next().and_then(|digits| digits.parse().ok()).unwrap_or(8)
}
