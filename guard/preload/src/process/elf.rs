//! Finds symbols in the tables of loaded objects, without `dlsym`, which this library replaces. Allocates nothing and
//! takes no lock but the loader's.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;

use libc::{Elf64_Phdr, Elf64_Rela, Elf64_Sym, PT_DYNAMIC, PT_LOAD, dl_iterate_phdr, dl_phdr_info};

/// The address of `name` in the first object after this library, in the order of loading, that exports it.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    let (mut found, mut is_after) = (ptr::null_mut(), false);
    visit(|object| {
        if is_after {
            found = object.find(name);
        }
        is_after |= object.is_own();
        !found.is_null()
    });
    found
}

/// The address of `name` in the object that contains `address`.
pub(crate) fn beside(address: *const c_void, name: &CStr) -> *mut c_void {
    let mut found = ptr::null_mut();
    visit(|object| {
        let is_there = object.contains(address.addr());
        if is_there {
            found = object.find(name);
        }
        is_there
    });
    found
}

/// Whether one part of a loaded object has the `bytes` bytes from `begin` on.
pub(crate) fn contains(begin: usize, bytes: usize) -> bool {
    let (end, mut is_within) = (begin.saturating_add(bytes), false);
    visit(|object| {
        is_within = object.parts().any(|part| part.0 <= begin && end <= part.1);
        is_within
    });
    is_within
}

/// Looks at the loaded objects, in the order of loading, until `look` returns true. It must not panic.
pub(crate) fn visit<F: FnMut(&Object<'_>) -> bool>(mut look: F) {
    unsafe extern "C" fn each<F: FnMut(&Object<'_>) -> bool>(
        info: *mut dl_phdr_info,
        _size: usize,
        look: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a live structure, and the pointer that it was given below.
        let (info, look) = unsafe { (&*info, &mut *look.cast::<F>()) };
        c_int::from(look(&Object(info)))
    }
    // SAFETY: `each` has the signature that the loader calls, and treats its last argument as the pointer to
    // the live closure that it is.
    unsafe { dl_iterate_phdr(Some(each::<F>), (&raw mut look).cast()) };
}

/// An object that the loader keeps loaded while it is visited.
pub(crate) struct Object<'a>(&'a dl_phdr_info);

impl Object<'_> {
    /// The address of the exported function or object `name`, or null; its default version.
    pub(crate) fn find(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the loader keeps the object loaded.
        self.tables().map_or(ptr::null_mut(), |tables| unsafe { tables.find(name) })
    }

    pub(crate) fn tables(&self) -> Option<Tables> {
        Tables::of(self.0)
    }

    /// Whether it is this library.
    pub(crate) fn is_own(&self) -> bool {
        self.contains((&raw const OWN).addr())
    }

    pub(crate) fn contains(&self, wanted: usize) -> bool {
        self.parts().any(|(begin, end)| begin <= wanted && wanted < end)
    }

    /// Where it begins and ends.
    pub(crate) fn range(&self) -> (usize, usize) {
        self.parts()
            .fold((usize::MAX, 0), |(begin, end), part| (begin.min(part.0), end.max(part.1)))
    }

    /// The name in other objects' lists of needed libraries (`DT_SONAME`), if it states one.
    pub(crate) fn name(&self) -> Option<&CStr> {
        // SAFETY: the loader keeps the object loaded.
        unsafe { self.tables()?.strings_of(DT_SONAME).next() }
    }

    /// The path that it was loaded from; empty for the program.
    pub(crate) fn path(&self) -> Option<&CStr> {
        let path = self.0.dlpi_name;
        // SAFETY: not null, so a string of the loader, which keeps the object loaded.
        (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
    }

    fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        let base = address(self.0.dlpi_addr);
        let loaded = program_headers(self.0).iter().filter(|header| header.p_type == PT_LOAD);
        loaded.map(move |header| {
            let begin = base.wrapping_add(address(header.p_vaddr));
            (begin, begin.wrapping_add(address(header.p_memsz)))
        })
    }
}

/// An address within this library.
static OWN: u8 = 0;

fn program_headers(info: &dl_phdr_info) -> &[Elf64_Phdr] {
    if info.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: `dlpi_phnum` headers stand at this address, and live as long as the object.
    unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
}

fn address(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// The tables of an object's exported symbols.
pub(crate) struct Tables {
    base: usize,
    dynamic: *const Dynamic,
    /// Both tables of relocations, each with its size in bytes.
    relocations: [(*const Elf64_Rela, usize); 2],
    symbols: *const Elf64_Sym,
    strings: *const u8,
    versions: *const u16,
    gnu_hash: *const u32,
    sysv_hash: *const u32,
}

/// `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

const DT_NULL: i64 = 0;
const DT_NEEDED: i64 = 1;
const DT_PLTRELSZ: i64 = 2;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_SONAME: i64 = 14;
const DT_JMPREL: i64 = 23;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
/// Marks a version that only already linked programs use.
const HIDDEN_VERSION: u16 = 0x8000;
/// Types of symbols that stand for an address: none stated, objects and functions.
const ADDRESSES: [u8; 3] = [0, 1, 2];

impl Tables {
    fn of(info: &dl_phdr_info) -> Option<Self> {
        let base = address(info.dlpi_addr);
        let header = program_headers(info).iter().find(|header| header.p_type == PT_DYNAMIC)?;
        let dynamic = base.wrapping_add(address(header.p_vaddr));
        let dynamic: *const Dynamic = ptr::with_exposed_provenance(dynamic);
        let table = |wanted| {
            // SAFETY: the loader mapped the dynamic section.
            let entry = unsafe { entries(dynamic) }.find(|entry| entry.tag == wanted);
            entry.map_or(ptr::null::<u8>(), |entry| {
                let value = address(entry.value);
                // The loader relocates these addresses, except in the kernel's own object.
                let at = if value < base { base.wrapping_add(value) } else { value };
                ptr::with_exposed_provenance(at)
            })
        };
        let size = |wanted| {
            // SAFETY: the loader mapped the dynamic section.
            let entry = unsafe { entries(dynamic) }.find(|entry| entry.tag == wanted);
            entry.map_or(0, |entry| address(entry.value))
        };
        let tables = Self {
            base,
            dynamic,
            relocations: [
                (table(DT_JMPREL).cast(), size(DT_PLTRELSZ)),
                (table(DT_RELA).cast(), size(DT_RELASZ)),
            ],
            symbols: table(DT_SYMTAB).cast(),
            strings: table(DT_STRTAB),
            versions: table(DT_VERSYM).cast(),
            gnu_hash: table(DT_GNU_HASH).cast(),
            sysv_hash: table(DT_HASH).cast(),
        };
        let whole = !tables.symbols.is_null() && !tables.strings.is_null();
        whole.then_some(tables)
    }

    /// Whether the object needs the object `name`.
    ///
    /// # Safety
    ///
    /// The object is loaded.
    pub(crate) unsafe fn needs(&self, name: &CStr) -> bool {
        // SAFETY: by this function's contract.
        unsafe { self.strings_of(DT_NEEDED).any(|needed| needed == name) }
    }

    /// Whether the object has bound `name` to this address.
    ///
    /// # Safety
    ///
    /// The object is loaded.
    pub(crate) unsafe fn has_bound(&self, name: &CStr, to: *const c_void) -> bool {
        // SAFETY: by this function's contract.
        let Some(symbol) = (unsafe { self.imported(name) }) else { return false };
        self.relocations.into_iter().filter(|(table, _)| !table.is_null()).any(|(table, bytes)| {
            (0..bytes / size_of::<Elf64_Rela>()).any(|place| {
                // SAFETY: the loader mapped the table.
                let Elf64_Rela { r_offset, r_info, .. } = unsafe { table.add(place).read() };
                let slot: *const *const c_void =
                    ptr::with_exposed_provenance(self.base.wrapping_add(address(r_offset)));
                // SAFETY: a relocation of a function writes a whole pointer there.
                r_info >> 32 == u64::from(symbol) && unsafe { slot.read_unaligned() } == to
            })
        })
    }

    /// The number of the symbol `name`, which the object takes from another one.
    ///
    /// # Safety
    ///
    /// The object is loaded.
    unsafe fn imported(&self, name: &CStr) -> Option<u32> {
        // SAFETY: the second number of this table is the first symbol that it has. Symbols before it are not exported.
        let first_exported = unsafe { self.gnu_hash.as_ref().map(|_| self.gnu_hash.add(1).read()) };
        // SAFETY: the second number of this table counts all symbols.
        let all = || unsafe { self.sysv_hash.as_ref().map(|_| self.sysv_hash.add(1).read()) };
        (1..first_exported.or_else(all)?).find(|index| {
            // SAFETY: the symbol exists, so its name does too.
            let (symbol, own) = unsafe {
                let symbol = &*self.symbols.add(address(u64::from(*index)));
                (symbol, CStr::from_ptr(self.strings.add(address(symbol.st_name.into())).cast()))
            };
            symbol.st_shndx == 0 && own == name
        })
    }

    /// The strings of the entries with this tag.
    ///
    /// # Safety
    ///
    /// The object is loaded as long as the strings are used.
    unsafe fn strings_of<'a>(&self, wanted: i64) -> impl Iterator<Item = &'a CStr> {
        let strings = self.strings;
        // SAFETY: by this function's contract.
        let named = unsafe { entries(self.dynamic) }.filter(move |entry| entry.tag == wanted);
        // SAFETY: the entry states where its string begins.
        named.map(move |entry| unsafe { CStr::from_ptr(strings.add(address(entry.value)).cast()) })
    }

    /// The address of the exported function or object `name`, or null; its default version.
    ///
    /// # Safety
    ///
    /// The object is loaded.
    unsafe fn find(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the object is loaded, and its hash table bounds the symbols.
        unsafe {
            if !self.gnu_hash.is_null() {
                self.find_by_gnu_hash(name)
            } else if !self.sysv_hash.is_null() {
                let count = self.sysv_hash.add(1).read();
                (0..count).find_map(|index| self.matching(index, name)).unwrap_or(ptr::null_mut())
            } else {
                ptr::null_mut()
            }
        }
    }

    /// # Safety
    ///
    /// The object is loaded and has this table.
    unsafe fn find_by_gnu_hash(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the table has four numbers, a filter of 64-bit words, and buckets;
        // each bucket names the first symbol of its chain, whose last hash is odd.
        unsafe {
            let [buckets, first, filter_words] =
                [0, 1, 2].map(|place| self.gnu_hash.add(place).read());
            let hash = gnu_hash(name);
            let Some(bucket) = hash.checked_rem(buckets) else { return ptr::null_mut() };
            let bucket_table = self.gnu_hash.add(4 + 2 * address(filter_words.into()));
            let chains = bucket_table.add(address(buckets.into()));
            let mut index = bucket_table.add(address(bucket.into())).read();
            while let Some(place) = index.checked_sub(first)
                && index > 0
            {
                let other = chains.add(address(place.into())).read();
                if other | 1 == hash | 1
                    && let Some(found) = self.matching(index, name)
                {
                    return found;
                }
                if other & 1 == 1 {
                    break;
                }
                index += 1;
            }
            ptr::null_mut()
        }
    }

    /// The address of symbol `index`, if it is exported under this name.
    ///
    /// # Safety
    ///
    /// The object is loaded and has that symbol.
    unsafe fn matching(&self, index: u32, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the symbol exists, so its name and version do too.
        unsafe {
            let place = address(index.into());
            let symbol = &*self.symbols.add(place);
            let hidden =
                !self.versions.is_null() && self.versions.add(place).read() & HIDDEN_VERSION != 0;
            let has_address = symbol.st_shndx != 0 && ADDRESSES.contains(&(symbol.st_info & 0xf));
            if hidden || !has_address {
                return None;
            }
            let own = self.strings.add(address(symbol.st_name.into()));
            let same = CStr::from_ptr(own.cast()) == name;
            same.then(|| {
                ptr::with_exposed_provenance_mut(self.base.wrapping_add(address(symbol.st_value)))
            })
        }
    }
}

/// The entries of a dynamic section.
///
/// # Safety
///
/// The section is loaded as long as the entries are read.
unsafe fn entries(mut next: *const Dynamic) -> impl Iterator<Item = Dynamic> {
    core::iter::from_fn(move || {
        // SAFETY: by this function's contract; the section ends with a null entry, which is not passed.
        let entry = unsafe { next.read() };
        // SAFETY: the section ends with a null entry, which this one is not.
        (entry.tag != DT_NULL).then(|| next = unsafe { next.add(1) })?;
        Some(entry)
    })
}

/// The hash of the table `DT_GNU_HASH`.
fn gnu_hash(name: &CStr) -> u32 {
    let step = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add((*byte).into());
    name.to_bytes().iter().fold(5381, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_where_the_loader_finds_it() {
        for name in [c"malloc", c"dlsym", c"dlvsym", c"pthread_create", c"open"] {
            // SAFETY: a name, looked up in all libraries.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert!(!expected.is_null());
            assert_eq!(beside(expected, name), expected, "{name:?}");
            assert_eq!(next(name), expected, "{name:?}");
        }
        // SAFETY: a name, looked up in all libraries.
        let libc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
        assert!(beside(libc, c"no_such_function").is_null());
        assert!(next(c"no_such_function").is_null());
        assert!(beside(ptr::without_provenance(1), c"malloc").is_null());
    }

    #[test]
    fn an_object_has_bound_a_function_where_its_relocation_says_so() {
        // SAFETY: a name, looked up in all libraries.
        let malloc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
        let bound = |name: &CStr, to: *const c_void| {
            let mut found = false;
            visit(|object| {
                // SAFETY: the loader keeps the object loaded.
                found |= object.is_own()
                    && object.tables().is_some_and(|tables| unsafe { tables.has_bound(name, to) });
                false
            });
            found
        };
        assert!(bound(c"malloc", malloc) && !bound(c"malloc", ptr::null()));
        assert!(!bound(c"no_such_function", malloc));
    }
}
