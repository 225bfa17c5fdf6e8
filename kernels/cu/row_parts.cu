// Accesses to rows in parts. Macro: ALIGNED is 1 if every row begins at a multiple of 16 bytes. A part is then
// one vector, else one element.

constexpr u32 STEP = ALIGNED ? WIDTH : 1;

struct Part {
    Element element[STEP];
};

// For data that is read once.
__device__ inline Part load_part_once(const Element *from) {
#if ALIGNED
    const Vector vector = ldcs_vector(from);
    return *reinterpret_cast<const Part *>(&vector);
#else
    return Part{{*from}};
#endif
}

// For data that is read again or by many rows.
__device__ inline Part load_part(const Element *__restrict__ from) {
#if ALIGNED
    const uint4 bits = __ldg(reinterpret_cast<const uint4 *>(from));
    return *reinterpret_cast<const Part *>(&bits);
#else
    return Part{{__ldg(from)}};
#endif
}

__device__ inline void store_part(Element *to, const Part &part) {
#if ALIGNED
    stcs_vector(to, *reinterpret_cast<const Vector *>(&part));
#else
    *to = part.element[0];
#endif
}
