//! What the opcodes of PTX do to values: the one list of instructions that are followed.

/// What an instruction does. Whatever is not listed may do anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The result is right if the operands fit their type, because nothing is added, multiplied or cut off.
    Function,
    /// The result may leave its type. It is known only if `result` follows it.
    Arithmetic,
    /// The result is read from memory, or from a device of the hardware.
    Load,
    /// Writes memory and no register.
    Store,
    Call,
    /// Writes neither registers nor memory.
    Control,
    Unknown,
}

/// The effect of an instruction with this opcode and these modifiers.
pub(super) fn effect(opcode: &[u8], modifiers: &[&[u8]], is_integer: bool) -> Effect {
    let has = |name: &[u8]| modifiers.contains(&name);
    // A carry, the sum over a warp, and a limit that depends on the exact result.
    if is_integer && (has(b".cc") || has(b".sat") || opcode == b"redux" && has(b".add")) {
        return Effect::Unknown;
    }
    match opcode {
        b"add" | b"sub" | b"mul" | b"mad" | b"fma" | b"shl" | b"bfi" | b"not" | b"neg" => {
            match is_integer {
                true => Effect::Arithmetic,
                false => Effect::Function,
            }
        }
        b"mov" | b"cvt" | b"cvta" | b"and" | b"or" | b"xor" | b"cnot" | b"lop3" | b"bfe"
        | b"bfind" | b"popc" | b"clz" | b"shr" | b"div" | b"rem" | b"abs" | b"min" | b"max"
        | b"selp" | b"set" | b"setp" | b"slct" | b"testp" | b"copysign" | b"rcp" | b"sqrt"
        | b"rsqrt" | b"sin" | b"cos" | b"lg2" | b"ex2" | b"tanh" | b"vote" | b"match"
        | b"redux" | b"shfl" | b"activemask" | b"elect" | b"isspacep" | b"mapa" | b"getctarank"
        | b"createpolicy" => Effect::Function,
        b"ld" | b"ldu" | b"atom" | b"ldmatrix" | b"tex" | b"tld4" | b"txq" | b"suld" | b"suq"
        | b"mbarrier" => Effect::Load,
        b"st" | b"red" | b"cp" | b"stmatrix" | b"sust" | b"sured" | b"multimem" => Effect::Store,
        b"call" => Effect::Call,
        b"bra" | b"brx" | b"ret" | b"exit" | b"trap" | b"bar" | b"barrier" | b"membar"
        | b"fence" | b"brkpt" | b"pmevent" | b"nanosleep" | b"prefetch" | b"prefetchu"
        | b"discard" | b"applypriority" | b"setmaxnreg" | b"griddepcontrol" => Effect::Control,
        _ => Effect::Unknown,
    }
}

/// Special registers whose values never wrap.
pub(super) fn is_special(name: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 13] = [
        b"%laneid",
        b"%lanemask_",
        b"%warpid",
        b"%nwarpid",
        b"%smid",
        b"%nsmid",
        b"%gridid",
        b"%clock",
        b"%globaltimer",
        b"%cluster",
        b"%ncluster",
        b"%total_smem_size",
        b"%dynamic_smem_size",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || name == b"WARP_SZ"
}
