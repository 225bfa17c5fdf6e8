//! What instructions do beside computing a known value: memory, addresses, calls, and results that are not followed.

use super::condition::Condition;
use super::opcodes::Effect;
use super::operand::{Operand, Type};
use super::poly::Poly;
use super::sizes::Reason;
use super::step::WORD;
use super::trace::{Input, Source, Trace, Use};
use super::values::Origin;
use super::values::index;

impl Trace<'_, '_> {
    /// Writes results that are not known exactly: functions of the operands, values from memory, or anything.
    pub(super) fn unfollowed(
        &mut self,
        effect: Effect,
        modifiers: &[&[u8]],
        (kind, of_result): (Option<Type>, Option<Type>),
        targets: &[u32],
        operands: &[Operand<'_>],
    ) {
        let is_address = |operand: &&Operand<'_>| matches!(operand, Operand::Address(..));
        let has_address = operands.iter().any(|operand| is_address(&operand));
        // A target in braces or before a bar was counted as one operand.
        let values = operands.iter().skip(usize::from(!targets.is_empty()));
        let signed_word = Type { is_signed: true, ..WORD };
        let taken = kind
            .filter(|kind| kind.is_integer)
            .map_or(signed_word, |kind| Type { is_signed: true, ..kind });
        let mut inputs = Vec::new();
        let mut is_long = false;
        for operand in values.filter(|operand| effect == Effect::Unknown || !is_address(operand)) {
            let nodes: Vec<Source> = match operand {
                Operand::Several(names) | Operand::Address(names, _) => {
                    names.iter().map(|name| self.read(*name)).collect()
                }
                _ => self.source(operand).into_iter().collect(),
            };
            for node in nodes {
                is_long |= self.nodes[node].value.len() > MOST_SUM;
                let own = match operand {
                    // `mov.b32 d, {low, high}`
                    Operand::Several(parts) if effect == Effect::Function => {
                        let count = u32::try_from(parts.len()).unwrap_or(1).max(1);
                        Type { bits: (taken.bits / count).max(1), ..taken }
                    }
                    Operand::Several(_) => signed_word,
                    _ => taken,
                };
                inputs.push(self.taken(node, own, true));
                let is_cut = effect == Effect::Store && own.bits < 32;
                let is_function = effect == Effect::Function || is_cut;
                if is_function && own.bits <= 32 && kind.is_some_and(|kind| !kind.is_signed) {
                    // Any function of the bits, which may extend them without a sign.
                    inputs.push(self.taken(node, Type { is_signed: false, ..own }, true));
                }
            }
        }
        let hubs = self.memory_of(modifiers);
        let is_parameter = modifiers.iter().any(|name| name.starts_with(b".param"));
        let (doubt, why) = match effect {
            Effect::Load if is_parameter => (None, Reason::Call),
            Effect::Load => (None, Reason::Loaded),
            Effect::Arithmetic if is_long => (Some(Reason::TooComplex), Reason::TooComplex),
            Effect::Arithmetic | Effect::Unknown => {
                (Some(Reason::Instruction), Reason::Instruction)
            }
            _ => (None, Reason::Instruction),
        };
        let is_written = matches!(effect, Effect::Store | Effect::Load)
            || effect == Effect::Unknown && has_address;
        if is_written && has_address && !inputs.is_empty() {
            let node = self.push(Poly::default(), core::mem::take(&mut inputs));
            self.nodes[node].doubt = doubt;
            let context = Some(self.context);
            hubs.iter().for_each(|hub| {
                self.nodes[*hub]
                    .inputs
                    .push(Input { context, ..Input::doubt(node, Reason::Loaded) });
            });
            inputs = vec![Input::doubt(node, Reason::Loaded)];
        }
        if effect == Effect::Load {
            inputs = hubs
                .iter()
                .map(|hub| Input { context: Some(0), ..Input::doubt(*hub, Reason::Loaded) })
                .collect();
        }
        self.values.unfollowed =
            inputs.iter().map(|input| self.nodes[input.node].origin).max().unwrap_or_default();
        if effect == Effect::Load {
            self.values.unfollowed = Origin::Data;
        }
        let integer = of_result
            .filter(|kind| kind.is_integer || targets.len() > 1 || effect == Effect::Unknown);
        for target in targets {
            let node = match integer {
                Some(kind) => {
                    let (low, high) = Type { is_integer: true, ..kind }.range();
                    let value = self.values.opaque(why, low, high);
                    self.push(value, inputs.clone())
                }
                None => self.predicate(Condition::Unknown(false), inputs.clone()),
            };
            self.nodes[node].doubt = doubt;
            self.nodes[node].origin = self.values.unfollowed;
            self.write(*target, node);
        }
    }

    /// The nodes of the memory that an instruction may access and that may be written meanwhile.
    fn memory_of(&self, modifiers: &[&[u8]]) -> Vec<usize> {
        let is_in = |space: &[u8]| modifiers.iter().any(|name| name.starts_with(space));
        let own = SPACES.iter().position(|space| is_in(space));
        match own {
            _ if is_in(b".const") || is_in(b".param") || is_in(b".nc") => Vec::new(),
            Some(place) => vec![self.memory[place]],
            None => self.memory.to_vec(),
        }
    }

    /// Notes the addresses and predicates that the instruction uses.
    pub(super) fn use_addresses(
        &mut self,
        opcode: &[u8],
        modifiers: &[&[u8]],
        operands: &[Operand<'_>],
    ) {
        let guard = self.code.instructions[self.at].guard;
        let is_near = |name: &&[u8]| NEAR.iter().any(|near| name.starts_with(near));
        let is_far = opcode == b"cp" || !modifiers.iter().any(is_near);
        let addresses: Vec<u32> = operands
            .iter()
            .filter_map(|operand| match operand {
                Operand::Address(names, _) if is_far => Some(names),
                _ => None,
            })
            .flatten()
            .copied()
            .collect();
        let is_branch = matches!(opcode, b"bra" | b"brx" | b"ret" | b"exit" | b"trap");
        if let Some(guard) = guard
            && (is_branch || !addresses.is_empty())
        {
            let (node, context) = (self.read(guard.register), self.context);
            self.uses.push(Use { node, context, is_address: false });
        }
        if let (b"brx", Some(Operand::Register(register))) = (opcode, operands.first()) {
            let node = self.read(*register);
            let input = self.taken(node, WORD, true);
            let (node, context) = (self.push(Poly::default(), vec![input]), self.context);
            self.uses.push(Use { node, context, is_address: false });
        }
        let context = match guard {
            Some(guard) if !addresses.is_empty() => self.guarded(self.context, guard),
            _ => self.context,
        };
        let are_coordinates = modifiers.contains(&&b".tensor"[..]);
        for (place, register) in addresses.into_iter().enumerate() {
            let mut node = self.read(register);
            if are_coordinates && place > 0 {
                let input = self.taken(node, Type { is_signed: true, ..WORD }, false);
                node = self.push(self.nodes[node].value.clone(), vec![input]);
            }
            self.uses.push(Use { node, context, is_address: true });
        }
    }

    pub(super) fn called(&mut self, operands: &[Operand<'_>]) {
        let names = operands.iter().filter_map(|operand| match operand {
            Operand::Register(id) => self.code.registers.get(index(*id)),
            _ => None,
        });
        let is_harmless = |name: &&[u8]| HARMLESS.contains(name);
        if !names.clone().any(is_harmless) {
            self.doubt.get_or_insert((Reason::Call, self.at));
        }
    }
}

/// State spaces that are too small for an index to wrap.
const NEAR: [&[u8]; 4] = [b".shared", b".param", b".local", b".const"];
const HARMLESS: [&[u8]; 4] = [b"vprintf", b"malloc", b"free", b"__assertfail"];
/// Writable memory.
const SPACES: [&[u8]; 3] = [b".global", b".shared", b".local"];
/// Longer sums are not followed.
const MOST_SUM: usize = 32;
