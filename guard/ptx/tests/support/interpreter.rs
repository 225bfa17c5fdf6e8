//! Runs the integer arithmetic of an entry for one thread: as a device does, or without any wrap of 32-bit values.
//!
//! It shares nothing with the analysis that it checks, not even how text is read.

use std::collections::HashMap;

/// An entry that can run.
pub(crate) struct Kernel {
    /// The bytes of each parameter.
    pub(crate) parameters: Vec<i128>,
    names: HashMap<String, usize>,
    instructions: Vec<Instruction>,
    registers: usize,
}

struct Instruction {
    guard: Option<(usize, bool)>,
    /// The opcode and its modifiers.
    name: Vec<String>,
    operands: Vec<Operand>,
    /// Where a branch goes.
    target: usize,
}

enum Operand {
    Register(usize),
    Number(i128),
    /// `tid`, `ctaid`, `ntid` or `nctaid`, and the axis.
    Special(String, usize),
    /// A register, or the number of a parameter, with an offset.
    Memory(Option<usize>, Option<usize>, i128),
    List(Vec<usize>),
    Other,
}

/// A launch, and one of its threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Thread {
    pub(crate) grid: [i128; 3],
    pub(crate) size: [i128; 3],
    pub(crate) block: [i128; 3],
    pub(crate) thread: [i128; 3],
    /// Values by parameter and offset in bytes.
    pub(crate) values: HashMap<(usize, i128), i128>,
}

/// What a thread accesses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Accesses {
    pub(crate) addresses: Vec<u64>,
    /// Whether the thread ended within the steps that are allowed.
    pub(crate) has_ended: bool,
}

impl Accesses {
    /// Whether two runs access the same memory, as far as both were followed.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        let both = self.addresses.len().min(other.addresses.len());
        let is_whole = self.has_ended && other.has_ended;
        self.addresses[..both] == other.addresses[..both]
            && (!is_whole || self.addresses.len() == other.addresses.len())
            // One that ended has no more accesses.
            && !(self.has_ended && other.addresses.len() > both)
            && !(other.has_ended && self.addresses.len() > both)
    }
}

/// The entries of a text by name.
pub(crate) fn kernels(text: &str) -> HashMap<String, Kernel> {
    let mut found = HashMap::new();
    for part in text.split(".entry ").skip(1) {
        let (name, rest) = part.split_once('(').expect("parameters");
        let (list, rest) = rest.split_once(')').expect("parameters");
        let (_, body) = rest.split_once('{').expect("a body");
        found.insert(name.trim().to_owned(), Kernel::read(list, body));
    }
    found
}

impl Kernel {
    fn read(list: &str, body: &str) -> Self {
        let mut parameters = Vec::new();
        let mut names = HashMap::new();
        for one in list.split(',').filter(|one| !one.trim().is_empty()) {
            let name = one.split_whitespace().next_back().expect("a name");
            let bytes = if one.contains("64") || one.contains('[') { 8 } else { 4 };
            names.insert(name.split('[').next().expect("a name").to_owned(), parameters.len());
            parameters.push(bytes);
        }
        let mut kernel = Self { parameters, names, instructions: Vec::new(), registers: 0 };
        let (mut registers, mut labels, mut branches) =
            (HashMap::new(), HashMap::new(), Vec::new());
        let lines = body.lines().map(|line| line.split("//").next().unwrap_or_default());
        let text = lines.collect::<Vec<_>>().join("\n");
        for statement in text.split_inclusive([';', ':']) {
            let statement = statement.trim().trim_start_matches(['{', '}']).trim();
            if let Some(label) = statement.strip_suffix(':') {
                labels.insert(label.trim().to_owned(), kernel.instructions.len());
                continue;
            }
            let statement = statement.trim_end_matches(';').trim();
            if statement.is_empty() || statement.starts_with(['.', '}']) {
                continue;
            }
            let (guard, statement) = match statement.strip_prefix('@') {
                Some(rest) => {
                    let (name, rest) = rest.split_once(char::is_whitespace).expect("a predicate");
                    let register = number(&mut registers, name.trim_start_matches('!'));
                    (Some((register, !name.starts_with('!'))), rest.trim())
                }
                None => (None, statement),
            };
            let (name, rest) = statement.split_once(char::is_whitespace).unwrap_or((statement, ""));
            if name.starts_with("bra") {
                branches.push((kernel.instructions.len(), rest.trim().to_owned()));
            }
            let operands =
                apart(rest).iter().map(|one| kernel.operand(one, &mut registers)).collect();
            let name = name.split('.').map(str::to_owned).collect();
            kernel.instructions.push(Instruction { guard, name, operands, target: usize::MAX });
        }
        for (at, label) in branches {
            kernel.instructions[at].target = labels[&label];
        }
        kernel.registers = registers.len();
        kernel
    }

    fn operand(&self, text: &str, registers: &mut HashMap<String, usize>) -> Operand {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.trim_end_matches(']');
            let (name, offset) = inner.split_once('+').unwrap_or((inner, "0"));
            let offset = literal(offset.trim()).unwrap_or(0);
            let parameter = self.names.get(name.trim()).copied();
            let register = name.starts_with('%').then(|| number(registers, name.trim()));
            return Operand::Memory(register, parameter, offset);
        }
        if let Some(inner) = text.strip_prefix('{') {
            let names = inner.trim_end_matches('}').split(',');
            return Operand::List(names.map(|one| number(registers, one.trim())).collect());
        }
        if let Some((name, axis)) = text.strip_prefix('%').and_then(|name| name.split_once('.')) {
            return Operand::Special(name.to_owned(), "xyz".find(axis).expect("an axis"));
        }
        match literal(text) {
            Some(value) => Operand::Number(value),
            None if text.starts_with('%') => Operand::Register(number(registers, text)),
            None => Operand::Other,
        }
    }

    /// Runs `thread`. 32-bit values do not wrap if `is_exact`.
    pub(crate) fn run(&self, thread: &Thread, is_exact: bool, steps: usize) -> Accesses {
        let mut machine =
            Machine { thread, is_exact, registers: vec![0; self.registers], addresses: Vec::new() };
        let mut at = 0;
        for _ in 0..steps {
            let Some(one) = self.instructions.get(at) else {
                return Accesses { addresses: machine.addresses, has_ended: true };
            };
            at += 1;
            if one
                .guard
                .is_some_and(|(register, wanted)| (machine.registers[register] != 0) != wanted)
            {
                continue;
            }
            match &one.name[0][..] {
                "bra" => at = one.target,
                "ret" | "exit" => at = usize::MAX,
                _ => machine.step(one),
            }
        }
        Accesses { addresses: machine.addresses, has_ended: false }
    }
}

struct Machine<'t> {
    thread: &'t Thread,
    is_exact: bool,
    registers: Vec<i128>,
    addresses: Vec<u64>,
}

impl Machine<'_> {
    fn step(&mut self, one: &Instruction) {
        let name: Vec<&str> = one.name.iter().map(|part| &part[..]).collect();
        let opcode = name[0];
        let kind = name[name.len() - 1];
        let (is_signed, bits) = (kind.starts_with('s'), bits_of(kind));
        let has = |modifier: &str| name.contains(&modifier);
        if !has("param") {
            for operand in &one.operands {
                if let Operand::Memory(Some(base), _, offset) = operand {
                    let address = self.registers[*base].wrapping_add(*offset);
                    self.addresses.push(low_64(address));
                }
            }
        }
        let (target, sources) = match &one.operands[..] {
            [Operand::Register(target), sources @ ..] => (*target, sources),
            [Operand::List(targets), source] if opcode == "mov" => {
                let whole = low_64(self.value(source, 64, false));
                self.registers[targets[0]] = i128::from(whole & u64::from(u32::MAX));
                self.registers[targets[1]] = i128::from(whole >> 32);
                return;
            }
            [Operand::List(targets), ..] => {
                targets.iter().for_each(|target| self.registers[*target] = 1);
                return;
            }
            _ => return,
        };
        let wide = if has("wide") { 32 } else { bits };
        let numbers: Vec<i128> =
            sources.iter().map(|source| self.value(source, wide, is_signed)).collect();
        let is_float = kind.starts_with('f') || kind.starts_with("bf");
        let result = match (opcode, &numbers[..]) {
            ("ld", _) if has("param") => {
                let Operand::Memory(None, Some(parameter), offset) = sources[0] else { return };
                self.thread.values.get(&(parameter, offset)).copied().unwrap_or(1)
            }
            ("setp", [a, b, rest @ ..]) => {
                let is_equal = a == b || a.wrapping_sub(*b).wrapping_abs() == 1 << bits;
                let holds = match name[1] {
                    _ if is_float => false,
                    "lt" | "lo" => a < b,
                    "le" | "ls" => a <= b,
                    "gt" | "hi" => a > b,
                    "ge" | "hs" => a >= b,
                    "eq" => is_equal,
                    "ne" => !is_equal,
                    other => panic!("setp.{other}"),
                };
                let other = rest.first().is_none_or(|other| *other != 0);
                let is_or = has("or");
                i128::from(if is_or { holds || !rest.is_empty() && other } else { holds && other })
            }
            (_, _) if is_float => 1,
            ("selp", [a, b, p]) => {
                if *p != 0 {
                    *a
                } else {
                    *b
                }
            }
            ("mov" | "cvta", [a]) => *a,
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
                    true if bits == 64 && !is_signed => {
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
            ("cvt", [_]) => {
                let (to, from) = (name[name.len() - 2], kind);
                let narrow = bits_of(to) < 32;
                // Exact values keep their sign when their upper half is cut off.
                let as_signed =
                    from.starts_with('s') || self.is_exact && bits_of(to) < bits_of(from);
                let value = self.value(&sources[0], bits_of(from), as_signed);
                let value = if narrow {
                    self.cut(value, bits_of(to), to.starts_with('s'), false)
                } else {
                    value
                };
                self.registers[target] = self.stored(value, bits_of(to));
                return;
            }
            _ => 1,
        };
        self.registers[target] = self.stored(result, if has("wide") { 64 } else { bits });
    }

    /// The value of an operand that an instruction takes as a number of `bits`.
    fn value(&self, operand: &Operand, bits: u32, is_signed: bool) -> i128 {
        let thread = self.thread;
        let value = match operand {
            Operand::Register(register) => self.registers[*register],
            Operand::Number(value) => *value,
            Operand::Special(name, axis) => match &name[..] {
                "tid" => thread.thread[*axis],
                "ctaid" => thread.block[*axis],
                "ntid" => thread.size[*axis],
                "nctaid" => thread.grid[*axis],
                _ => 0,
            },
            _ => 0,
        };
        self.cut(value, bits, is_signed, self.is_exact && bits == 32)
    }

    fn cut(&self, value: i128, bits: u32, is_signed: bool, is_exact: bool) -> i128 {
        let all = 1_i128 << bits;
        if is_exact {
            // The bits of a negative number are those of a large one.
            return if !is_signed && value < 0 && value >= -all / 2 { value + all } else { value };
        }
        let low = value.rem_euclid(all);
        if is_signed && low >= all / 2 { low - all } else { low }
    }

    fn stored(&self, value: i128, bits: u32) -> i128 {
        if self.is_exact && bits == 32 { value } else { value.rem_euclid(1 << bits) }
    }
}

fn low_64(value: i128) -> u64 {
    u64::try_from(value.rem_euclid(1 << 64)).expect("64 bits")
}

/// The bits of a type such as `u32`; predicates have room for 0 and 1.
fn bits_of(kind: &str) -> u32 {
    let digits = kind.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    digits.split('x').next().and_then(|digits| digits.parse().ok()).unwrap_or(8)
}

fn number(registers: &mut HashMap<String, usize>, name: &str) -> usize {
    let next = registers.len();
    *registers.entry(name.to_owned()).or_insert(next)
}

fn literal(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let digits = digits.trim_end_matches('U');
    let value = match digits.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16).ok(),
        None => digits.parse().ok(),
    };
    value.map(|value| sign * value)
}

/// Operands at commas outside of brackets and braces.
fn apart(text: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for letter in text.chars() {
        match letter {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            _ => {}
        }
        match letter {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("a part").push(letter),
        }
    }
    let parts = parts.into_iter().map(|part| part.trim().to_owned());
    parts.filter(|part| !part.is_empty()).collect()
}
