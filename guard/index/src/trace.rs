//! Follows the values of an entry's registers through its blocks.

use std::collections::HashMap;

use super::code::{Code, Guard, Instruction};
use super::condition::Condition;
use super::flow::{Edge, Flow};
use super::opcodes::{Effect, effect, is_special};
use super::operand::{Operand, Type, operands};
use super::poly::Poly;
use super::sizes::{Reason, Size};
use super::values::{Context, Incoming, Join, Kind, Origin, Values, index};

/// A value: the result of an instruction, or a join at a block with several predecessors.
pub(super) struct Node {
    pub(super) value: Poly,
    pub(super) inputs: Vec<Input>,
    /// The instruction that computes it.
    pub(super) instruction: usize,
    /// Whether it is a predicate, which has a condition and no value.
    pub(super) is_predicate: bool,
    pub(super) origin: Origin,
    /// Why the value may differ from the exact one even if those of its inputs do not.
    pub(super) doubt: Option<Reason>,
}

/// The node of a source operand.
pub(super) type Source = usize;

#[derive(Clone, Copy, Default)]
pub(super) struct Input {
    pub(super) node: usize,
    /// The place that the value comes from, if it is not the place of its use.
    pub(super) context: Option<u32>,
    /// The type that the exact value may exceed, if the instruction depends on all bits.
    pub(super) taken_as: Option<Taken>,
    /// Why a value that exceeds its type may be meant, or may not decide: the result is then unknown, no wrap.
    pub(super) doubt: Option<Reason>,
    /// If the lower bits of the result depend on lower bits alone: how many do, and by how many bits they are shifted to
    /// the left.
    pub(super) lower: Option<[u32; 2]>,
}

impl Input {
    /// The lower bits of the result depend on as many lower bits of this value.
    pub(super) fn of(node: Source) -> Self {
        Self { node, lower: Some([ALL_BITS, 0]), ..Self::default() }
    }

    /// An input of which it is unknown whether it decides.
    pub(super) fn doubt(node: Source, why: Reason) -> Self {
        Self { node, doubt: Some(why), ..Self::default() }
    }

    pub(super) fn doubted(self) -> Self {
        Self { doubt: self.doubt.or(Some(Reason::Instruction)), ..self }
    }
}

/// An integer type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Taken {
    pub(super) bits: u32,
    pub(super) is_signed: bool,
}

impl Taken {
    pub(super) fn most(self) -> i128 {
        // A number of 127 bits is larger than all that are followed.
        (1 << (self.bits - u32::from(self.is_signed)).min(126)) - 1
    }

    /// Negative numbers are large ones in an unsigned type. [`Check::negative`](super::checks::Check) finds them.
    pub(super) fn least(self) -> i128 {
        if self.is_signed { -self.most() - 1 } else { i128::MIN }
    }
}

/// A node that becomes an address, or decides about a branch.
pub(super) struct Use {
    pub(super) node: usize,
    pub(super) context: u32,
    pub(super) is_address: bool,
}

/// The values that an entry computes.
pub(super) struct Trace<'c, 'a> {
    pub(super) code: &'c Code<'a>,
    pub(super) values: Values,
    pub(super) nodes: Vec<Node>,
    pub(super) uses: Vec<Use>,
    /// The parameters' names.
    parameters: &'c HashMap<&'a [u8], usize>,
    /// How often an instruction writes each register.
    writes: Vec<u8>,
    /// The nodes of registers that are written once.
    single: Vec<Option<usize>>,
    /// The places in `state` of registers that are written several times.
    places: Vec<Option<usize>>,
    /// The registers that are written several times, in the order of their places.
    several: Vec<u32>,
    /// The nodes of these registers at the current place.
    state: Vec<Option<usize>>,
    pub(super) context: u32,
    /// The index of the instruction.
    pub(super) at: usize,
    /// Why the whole entry is unknown, and the instruction.
    pub(super) doubt: Option<(Reason, usize)>,
    /// The nodes of global, shared and local memory. Their inputs are the values that are stored there.
    pub(super) memory: [usize; 3],
}

/// Why the whole entry is unknown.
type Failure = Reason;

impl<'c, 'a> Trace<'c, 'a> {
    pub(super) fn of(
        code: &'c Code<'a>,
        parameters: &'c HashMap<&'a [u8], usize>,
        block: [Option<(i128, i128)>; 3],
    ) -> Result<Self, Failure> {
        if let Some(problem) = code.problem {
            return Err(problem);
        }
        let flow = Flow::of(code).ok_or(Reason::ControlFlow)?;
        let values = Values::new(block);
        let count = code.registers.len();
        let mut trace = Self {
            code,
            values,
            nodes: Vec::new(),
            uses: Vec::new(),
            parameters,
            writes: vec![0; count],
            single: vec![None; count],
            places: vec![None; count],
            several: Vec::new(),
            state: Vec::new(),
            context: 0,
            at: 0,
            doubt: None,
            memory: [0; 3],
        };
        trace.memory = [(); 3].map(|()| trace.push(Poly::default(), Vec::new()));
        trace.count_writes();
        trace.walk(&flow)?;
        trace.close();
        Ok(trace)
    }

    fn count_writes(&mut self) {
        for instruction in &self.code.instructions {
            let operands = operands(self.code, instruction);
            let (effect, ..) = self.effect(instruction);
            for &id in targets(effect, &operands) {
                let register = index(id);
                self.writes[register] = self.writes[register].saturating_add(1);
                if self.writes[register] == 2 {
                    self.places[register] = Some(self.several.len());
                    self.several.push(id);
                }
            }
        }
        self.state = vec![None; self.several.len()];
    }

    fn walk(&mut self, flow: &Flow) -> Result<(), Failure> {
        let count = self.code.blocks.len();
        if count.saturating_mul(self.state.len()) > MOST_STATES {
            return Err(Reason::TooComplex);
        }
        let root = self.values.context(Context::default());
        let mut contexts = vec![root; count];
        let mut states: Vec<Vec<Option<usize>>> = vec![Vec::new(); count];
        let mut headers = Vec::new();
        for (place, &block) in flow.order.iter().enumerate() {
            let edges = &flow.edges[block];
            let forward: Vec<Edge> =
                edges.iter().filter(|edge| !flow.is_back(edge, block)).copied().collect();
            let back: Vec<Edge> =
                edges.iter().filter(|edge| flow.is_back(edge, block)).copied().collect();
            if place > 0 {
                let mut sources = Vec::new();
                for edge in &forward {
                    let context = self.edge_context(*edge, contexts[edge.from], &states[edge.from]);
                    sources.push((edge.from, context));
                }
                contexts[block] = match (&sources[..], &back[..]) {
                    ([(_, context)], []) => *context,
                    _ => contexts[flow.dominators[block]],
                };
                self.context = contexts[block];
                let written = self.written_in_loop(flow, block, &back);
                let joins = self.meet(&sources, &states, &written, !back.is_empty());
                headers.push((block, back, joins));
            }
            self.context = contexts[block];
            let range = self.code.blocks[block].instructions.clone();
            for at in range {
                self.at = at;
                self.step();
                if self.values.steps > MOST_STEPS || self.nodes.len() > MOST_NODES {
                    return Err(Reason::TooComplex);
                }
            }
            states[block] = self.state.clone();
        }
        for (_, back, joins) in headers {
            for edge in back {
                let context = self.edge_context(edge, contexts[edge.from], &states[edge.from]);
                for (register, node) in &joins {
                    let own = self.places[index(*register)];
                    let from = own.and_then(|own| states[edge.from].get(own).copied().flatten());
                    self.come_back(*node, from, context);
                }
            }
        }
        Ok(())
    }

    /// The registers that may change in the loop that begins at `block`.
    fn written_in_loop(&mut self, flow: &Flow, block: usize, back: &[Edge]) -> Vec<bool> {
        let mut written = vec![false; self.state.len()];
        let Some(last) = back.iter().filter_map(|edge| flow.place[edge.from]).max() else {
            return written;
        };
        let first = flow.place[block].unwrap_or(0);
        for &block in flow.order.get(first..=last).unwrap_or_default() {
            let range = self.code.blocks[block].instructions.clone();
            self.values.steps += u64::try_from(range.len()).unwrap_or(0);
            for instruction in &self.code.instructions[range] {
                // The first operand, and all of them if it is a vector.
                let first = self.code.tokens.get(instruction.operands);
                let is_vector = first.is_some_and(|token| token.is(b'{') || token.is(b'('));
                let is_inside = |at: &usize| is_vector || !self.code.tokens[*at].is(b',');
                let ids = (instruction.operands..instruction.tokens.end).take_while(is_inside);
                for id in ids.take(MOST_WRITTEN).map(|at| self.code.ids[at]) {
                    if id != u32::MAX
                        && let Some(place) = self.places[index(id)]
                    {
                        written[place] = true;
                    }
                }
            }
        }
        written
    }

    /// Sets the state at a block with several predecessors. Returns the joins of a loop, with their registers.
    fn meet(
        &mut self,
        sources: &[(usize, u32)],
        states: &[Vec<Option<usize>>],
        written: &[bool],
        is_loop: bool,
    ) -> Vec<(u32, usize)> {
        let mut joins = Vec::new();
        let Some((first, _)) = sources.first() else { return joins };
        let mut state = states[*first].clone();
        let oldest = u32::try_from(self.values.atoms.len()).unwrap_or(u32::MAX);
        for place in 0..self.several.len() {
            let is_same = sources.iter().all(|(from, _)| states[*from][place] == state[place]);
            let changes = is_loop && written[place];
            if is_same && !changes {
                continue;
            }
            let known: Option<Vec<(usize, u32)>> = sources
                .iter()
                .map(|(from, context)| Some((states[*from][place]?, *context)))
                .collect();
            state[place] = known.map(|known| {
                let register = self.several[place];
                let node = self.join(register, &known, changes.then_some(oldest));
                if changes {
                    joins.push((register, node));
                }
                node
            });
        }
        self.state = state;
        joins
    }

    /// A node that has the value of one of several nodes.
    pub(super) fn join(
        &mut self,
        register: u32,
        nodes: &[(usize, u32)],
        loop_atoms: Option<u32>,
    ) -> usize {
        let (mut low, mut high) = (i128::MAX, i128::MIN);
        let (mut incoming, mut inputs) = (Vec::new(), Vec::new());
        if nodes.iter().any(|(node, _)| self.nodes[*node].is_predicate) {
            let inputs = nodes
                .iter()
                .map(|(node, context)| Input { context: Some(*context), ..Input::of(*node) });
            return self.predicate(Condition::Unknown(false), inputs.collect());
        }
        for (node, context) in nodes {
            let value = self.nodes[*node].value.clone();
            let range = self.values.range(&value);
            (low, high) = (low.min(range.0), high.max(range.1));
            incoming.push(Incoming { value, context: *context, is_back: false });
            inputs.push(Input { context: Some(*context), ..Input::of(*node) });
        }
        if loop_atoms.is_some() {
            high = high.max(i128::from(i64::MAX));
        } else if let [first, rest @ ..] = &incoming[..]
            && rest.iter().all(|one| one.value == first.value)
        {
            return self.push(first.value.clone(), inputs);
        }
        let join = Join { register, incoming, loop_atoms };
        let value = self.values.join(join, low, high);
        self.push(value, inputs)
    }

    /// Adds the value that the loop of `join` has at its next turn.
    fn come_back(&mut self, join: usize, from: Option<usize>, context: u32) {
        if let Some(node) = from {
            let input = Input { context: Some(context), ..Input::of(node) };
            self.nodes[join].inputs.push(input);
        }
        let Some(atom) = self.nodes[join].value.as_atom() else { return };
        let Kind::Join(number) = self.values.get(atom).kind else { return };
        let value = match from.map(|node| &self.nodes[node]) {
            Some(node) if !node.is_predicate => node.value.clone(),
            _ => self.values.opaque(Reason::Instruction, 0, i128::from(u32::MAX)),
        };
        self.values.joins[number].incoming.push(Incoming { value, context, is_back: true });
    }

    /// The context after an edge from a block that ends with this context and this state.
    fn edge_context(&mut self, edge: Edge, from: u32, state: &[Option<usize>]) -> u32 {
        let (Some(taken), Some(guard)) = (edge.taken, self.code.blocks[edge.from].guard) else {
            return from;
        };
        let node = match self.places[index(guard.register)] {
            Some(place) => state.get(place).copied().flatten(),
            None => self.single[index(guard.register)],
        };
        match node {
            Some(node) => self.assume(from, node, guard.expected == taken),
            // The predicate is not defined on this path.
            None => from,
        }
    }

    /// The context in which `guard` also holds.
    pub(super) fn guarded(&mut self, parent: u32, guard: Guard) -> u32 {
        let node = self.read(guard.register);
        self.assume(parent, node, guard.expected)
    }

    pub(super) fn push(&mut self, value: Poly, inputs: Vec<Input>) -> usize {
        let own = inputs.iter().map(|input| self.nodes[input.node].origin);
        let origin = own.max().unwrap_or_default().max(self.values.origin(&value));
        self.nodes.push(Node {
            value,
            inputs,
            instruction: self.at,
            is_predicate: false,
            origin,
            doubt: None,
        });
        self.nodes.len() - 1
    }

    pub(super) fn predicate(&mut self, condition: Condition, inputs: Vec<Input>) -> usize {
        let node = self.push(Poly::default(), inputs);
        self.nodes[node].is_predicate = true;
        self.values.conditions.insert(node, condition);
        node
    }

    /// The effect of an instruction, the type of its operands and the type of its result.
    pub(super) fn effect(&self, instruction: &Instruction) -> (Effect, Option<Type>, Option<Type>) {
        let name = &self.code.tokens[instruction.tokens.start..instruction.operands];
        let modifiers: Vec<&[u8]> = name.iter().skip(1).map(|token| token.text).collect();
        let opcode = name.first().map_or(&b""[..], |token| token.text);
        let mut types = modifiers.iter().rev().map_while(|name| Type::of(name));
        let of_operands = types.next();
        let of_result = match opcode {
            b"cvt" | b"set" | b"slct" => types.next(),
            b"mul" | b"mad" if modifiers.contains(&&b".wide"[..]) => {
                of_operands.map(|kind| Type { bits: kind.bits * 2, ..kind })
            }
            _ => of_operands,
        };
        let is_integer = of_operands.is_none_or(|kind| kind.is_integer);
        (effect(opcode, &modifiers, is_integer), of_operands, of_result)
    }

    pub(super) fn node_of(&self, register: u32) -> Option<usize> {
        match self.places[index(register)] {
            Some(place) => self.state[place],
            None => self.single[index(register)],
        }
    }

    /// The node of a register. A register without a known value gets a new node.
    pub(super) fn read(&mut self, register: u32) -> usize {
        if let Some(node) = self.node_of(register) {
            return node;
        }
        // A shared or global variable: only small offsets are added to addresses of shared memory.
        let name = self.code.registers[index(register)];
        if self.writes[index(register)] == 0 && !name.starts_with(b"%") {
            let value = self.values.poly(Kind::UpTo(index(register), Poly::constant(MOST_SHARED)));
            return self.push(value, Vec::new());
        }
        self.values.unfollowed = Origin::Grid;
        let value = self.values.opaque(Reason::Instruction, 0, i128::from(u32::MAX));
        let node = self.push(value, Vec::new());
        self.nodes[node].doubt = (!is_special(name)).then_some(Reason::Instruction);
        self.set(register, node);
        node
    }

    pub(super) fn write(&mut self, register: u32, node: usize) {
        let guard = self.code.instructions[self.at].guard;
        let is_several = self.places[index(register)].is_some();
        let old = (guard.is_some() && is_several).then(|| self.read(register));
        let node = match (guard, old) {
            (Some(guard), Some(old)) => {
                let new = self.guarded(self.context, guard);
                let rest = Guard { expected: !guard.expected, ..guard };
                let rest = self.guarded(self.context, rest);
                let node = self.join(register, &[(node, new), (old, rest)], None);
                self.depend_on(node, guard.register);
                node
            }
            _ => node,
        };
        self.set(register, node);
    }

    /// The value of `node` also depends on a predicate.
    pub(super) fn depend_on(&mut self, node: usize, predicate: u32) {
        if let Some(condition) = self.node_of(predicate) {
            self.nodes[node].inputs.push(Input { lower: None, ..Input::of(condition) });
            self.nodes[node].origin = self.nodes[node].origin.max(self.nodes[condition].origin);
        }
    }

    fn set(&mut self, register: u32, node: usize) {
        match self.places[index(register)] {
            Some(place) => self.state[place] = Some(node),
            None => self.single[index(register)] = Some(node),
        }
    }

    pub(super) fn parameter(&mut self, names: &[u32], offset: i128, bytes: u64) -> Option<Poly> {
        let [name] = names else { return None };
        let parameter = *self.parameters.get(self.code.registers[index(*name)])?;
        let offset = u64::try_from(offset).ok()?;
        Some(self.values.poly(Kind::Size(Size::Parameter { index: parameter, offset }, bytes)))
    }

    /// The opcode of the instruction that computes a node.
    pub(super) fn opcode(&self, node: usize) -> &'a [u8] {
        self.code.tokens[self.code.instructions[self.nodes[node].instruction].tokens.start].text
    }

    pub(super) fn operands(&self) -> Vec<Operand<'a>> {
        operands(self.code, &self.code.instructions[self.at])
    }
}

/// The registers that an instruction writes.
pub(super) fn targets<'o>(effect: Effect, operands: &'o [Operand<'_>]) -> &'o [u32] {
    match (effect, operands.first()) {
        (Effect::Store | Effect::Control, _) => &[],
        (Effect::Call, Some(Operand::Register(_))) => &[],
        (_, first) => first.map_or(&[], Operand::written),
    }
}

/// The most blocks times registers that are written several times.
const MOST_STATES: usize = 8_000_000;
const MOST_STEPS: u64 = 4_000_000;
const MOST_NODES: usize = 2_000_000;
/// More bits than a value has.
pub(super) const ALL_BITS: u32 = 128;
/// The most tokens of a first operand.
const MOST_WRITTEN: usize = 40;
/// The bytes of shared memory that one block can address.
const MOST_SHARED: i128 = (1 << 18) - 1;
