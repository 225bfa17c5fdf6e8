//! Runs the integer arithmetic of an entry for one thread: as a device does, or without any wrap of 32-bit values.
//!
//! It shares nothing with the analysis that it checks, not even how text is read. A load answers what the thread itself
//! stored there, or like every atomic and call the same number. A floating-point operation answers 1, and a comparison
//! of floating-point numbers is false. A shuffle answers the thread's own value. Carries are not kept. An instruction
//! that it does not know is some function of its operands.

mod machine;

use std::collections::HashMap;

use machine::bits_of;

/// An entry that can run.
pub(crate) struct Kernel {
    /// The bytes of each parameter.
    pub(crate) parameters: Vec<i128>,
    /// The block size that the entry requires.
    pub(crate) required: Option<[i128; 3]>,
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
    is_signed: bool,
    is_float: bool,
    bits: u32,
    /// Whether its addresses are in global memory.
    is_far: bool,
}

impl Instruction {
    /// Its state space.
    fn space(&self) -> &str {
        let parts = self.name.iter().map(String::as_str);
        parts.into_iter().find(|part| ["shared", "local"].contains(part)).unwrap_or_default()
    }
}

enum Operand {
    Register(usize),
    Number(i128),
    /// `tid`, `ctaid`, `ntid` or `nctaid`, and the axis.
    Special(String, usize),
    /// A register, or the number of a parameter, with an offset.
    Memory(Option<usize>, Option<usize>, i128),
    List(Vec<Option<usize>>),
    Other,
}

/// A launch, and one of its threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Thread {
    pub(crate) grid: [i128; 3],
    pub(crate) size: [i128; 3],
    pub(crate) block: [i128; 3],
    pub(crate) thread: [i128; 3],
    /// Values by parameter and offset in bytes. Others are 1.
    pub(crate) values: HashMap<(usize, i128), i128>,
    /// What a load answers.
    pub(crate) loaded: i128,
}

/// What a thread accesses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Accesses {
    pub(crate) addresses: Vec<u64>,
    /// Whether the thread ended within the steps that are allowed.
    pub(crate) has_ended: bool,
    pub(crate) steps: usize,
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
    for (at, _) in text.match_indices(".entry ") {
        let rest = &text[at + ".entry ".len()..];
        let (Some(open), Some(end)) = (rest.find('{'), rest.find([';', '{'])) else { continue };
        if end != open {
            continue;
        }
        let (name, list) = rest[..open].split_once('(').unwrap_or((&rest[..open], ""));
        let (list, directives) = list.split_once(')').unwrap_or((list, ""));
        let body = &rest[open + 1..];
        let mut depth = 1;
        let close = body.find(|letter| {
            depth += i32::from(letter == '{') - i32::from(letter == '}');
            depth == 0
        });
        let kernel = Kernel::read(list, directives, &body[..close.unwrap_or(body.len())]);
        found.insert(name.trim().to_owned(), kernel);
    }
    found
}

impl Kernel {
    /// Whether an instruction reads a block or thread index of this axis.
    pub(crate) fn reads(&self, axis: usize) -> bool {
        let is_it = |operand: &Operand| matches!(operand, Operand::Special(_, own) if *own == axis);
        self.instructions.iter().any(|one| one.operands.iter().any(is_it))
    }

    fn read(list: &str, directives: &str, body: &str) -> Self {
        let (mut parameters, mut names) = (Vec::new(), HashMap::new());
        for one in list.split(',').filter(|one| !one.trim().is_empty()) {
            let name = one.split_whitespace().next_back().expect("a name");
            let (name, bytes) = match name.split_once('[') {
                Some((name, bytes)) => (name, literal(bytes.trim_end_matches(']')).unwrap_or(8)),
                None => (name, if one.contains("64") { 8 } else { 4 }),
            };
            names.insert(name.to_owned(), parameters.len());
            parameters.push(bytes);
        }
        let stated = |name: &str| {
            let numbers = directives.split(name).nth(1)?.split('.').next()?;
            let mut numbers = numbers.split(',').filter_map(|number| literal(number.trim()));
            Some([(); 3].map(|()| numbers.next().unwrap_or(1)))
        };
        let required = stated(".reqntid");
        let (instructions, registers) = (Vec::new(), 0);
        let mut kernel = Self { parameters, required, names, instructions, registers };
        kernel.read_body(body);
        kernel
    }

    fn read_body(&mut self, body: &str) {
        let (mut registers, mut labels, mut branches) =
            (HashMap::new(), HashMap::new(), Vec::new());
        // Directives of debugging end at the line.
        let of_line = |line: &'_ str| -> String {
            let line = line.split("//").next().unwrap_or_default();
            let is_place = line.trim_start().starts_with(".loc") || line.contains(".file");
            if is_place { String::new() } else { line.to_owned() }
        };
        let text = body.lines().map(of_line).collect::<Vec<_>>().join("\n");
        for whole in text.split_inclusive(';') {
            let mut statement = whole.trim_end_matches(';');
            loop {
                let trimmed = statement.trim_start().trim_start_matches(['{', '}']);
                let label = trimmed.split_once(':').filter(|(label, rest)| {
                    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_$%".contains(&byte);
                    label.bytes().all(is_name) && !rest.starts_with(':')
                });
                match label {
                    Some((label, rest)) => {
                        labels.insert(label.to_owned(), self.instructions.len());
                        statement = rest;
                    }
                    None if trimmed.len() == statement.len() => break,
                    None => statement = trimmed,
                }
            }
            let statement = statement.trim_end();
            if !statement.is_empty() && !statement.starts_with('.') {
                self.instruction(statement, &mut registers, &mut branches);
            }
        }
        for (at, label) in branches {
            self.instructions[at].target = labels.get(&label).copied().unwrap_or(usize::MAX);
        }
        self.registers = registers.len();
    }

    fn instruction(
        &mut self,
        statement: &str,
        registers: &mut HashMap<String, usize>,
        branches: &mut Vec<(usize, String)>,
    ) {
        let (guard, statement) = match statement.strip_prefix('@') {
            Some(rest) => {
                let (name, rest) = rest.split_once(char::is_whitespace).expect("a predicate");
                let register = number(registers, name.trim_start_matches('!'));
                (Some((register, !name.starts_with('!'))), rest.trim())
            }
            None => (None, statement),
        };
        let (name, rest) = statement.split_once(char::is_whitespace).unwrap_or((statement, ""));
        if name.starts_with("bra") {
            branches.push((self.instructions.len(), rest.trim().to_owned()));
        }
        let operands = apart(rest).iter().map(|one| self.operand(one, registers)).collect();
        let name: Vec<String> = name.split('.').map(str::to_owned).collect();
        let kind = name.last().expect("an opcode");
        let near = ["shared", "param", "local", "const"];
        let is_near = |part: &String| near.iter().any(|near| part.starts_with(near));
        self.instructions.push(Instruction {
            guard,
            is_signed: kind.starts_with('s'),
            is_float: kind.starts_with('f') || kind.starts_with("bf"),
            bits: bits_of(kind),
            is_far: name[0] == "cp" || !name.iter().any(is_near),
            name,
            operands,
            target: usize::MAX,
        });
    }

    fn operand(&self, text: &str, registers: &mut HashMap<String, usize>) -> Operand {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.split([']', ',']).next().unwrap_or_default();
            let (name, offset) = inner.split_once('+').unwrap_or((inner, "0"));
            let (name, offset) = (name.trim(), literal(offset.trim()).unwrap_or(0));
            let parameter = self.names.get(name).copied();
            let register = name.starts_with('%').then(|| number(registers, name));
            return Operand::Memory(register, parameter, offset);
        }
        let names = text.trim_start_matches('{').trim_end_matches('}');
        if text.starts_with('{') || text.contains('|') {
            let mut known = |one: &str| {
                let is_register = literal(one).is_none() && one != "_";
                is_register.then(|| number(registers, one))
            };
            let names = names.split([',', '|']);
            return Operand::List(names.map(|one| known(one.trim())).collect());
        }
        let special = text.strip_prefix('%').and_then(|name| name.split_once('.'));
        match special.or(text.strip_prefix('%').map(|name| (name, "x"))) {
            Some((name @ ("tid" | "ctaid" | "ntid" | "nctaid" | "laneid" | "warpid"), axis)) => {
                Operand::Special(name.to_owned(), "xyz".find(axis).expect("an axis"))
            }
            _ if text == "WARP_SZ" => Operand::Number(32),
            _ => match literal(text) {
                Some(value) => Operand::Number(value),
                None if special.is_some() => Operand::Other,
                None => Operand::Register(number(registers, text)),
            },
        }
    }
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
            '[' | '{' | '(' => depth += 1,
            ']' | '}' | ')' => depth -= 1,
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
