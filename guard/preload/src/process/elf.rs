//! Finds symbols in the tables of loaded objects, without `dlsym`, which this library replaces. Takes no lock but the
//! loader's, and to find a symbol allocates nothing.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use std::ffi::CString;

use libc::{Elf64_Phdr, Elf64_Rela, Elf64_Sym, PT_DYNAMIC, PT_LOAD, dl_iterate_phdr, dl_phdr_info};

/// The address of `name` in the first object after this library, in the order of loading, that exports it.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    let mut is_after = false;
    let found = find_map(|object| {
        let found = if is_after { object.find(name) } else { None };
        is_after |= object.is_own();
        found
    });
    found.unwrap_or(ptr::null_mut())
}

/// The address of `name` in the object that contains `address`.
pub(crate) fn beside(address: *const c_void, name: &CStr) -> *mut c_void {
    let within = |object: &Object<'_>| object.contains(address.addr()).then(|| object.find(name));
    find_map(within).flatten().unwrap_or(ptr::null_mut())
}

/// Whether one part of a loaded object has the `bytes` bytes from `begin` on.
pub(crate) fn contains(begin: usize, bytes: usize) -> bool {
    let is_within = |part: (usize, usize)| part.0 <= begin && begin.saturating_add(bytes) <= part.1;
    find_map(|object| object.parts().any(is_within).then_some(())).is_some()
}

/// The path of the object that contains `address`; empty for the program.
pub(crate) fn path_of(address: usize) -> Option<CString> {
    find_map(|object| object.contains(address).then(|| object.path().map(CStr::to_owned))).flatten()
}

/// Keeps the object that contains `address` loaded until the result is dropped; `None` if there is none.
pub(crate) fn hold(address: usize) -> Option<HeldObject> {
    let path = path_of(address)?;
    // The program itself has no path, and is never unloaded.
    let name = if path.is_empty() { ptr::null() } else { path.as_ptr() };
    // SAFETY: null or a string. The object is loaded already, so none of its code runs.
    let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    let held = (!handle.is_null()).then_some(HeldObject(handle))?;
    // Another object of this path may have taken its place before it was held.
    (path_of(address)? == path).then_some(held)
}

/// An object that is not unloaded meanwhile.
pub(crate) struct HeldObject(*mut c_void);

impl Drop for HeldObject {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once.
        unsafe { libc::dlclose(self.0) };
    }
}

/// The first result of `look` for the loaded objects, in the order of loading. It must not panic.
pub(crate) fn find_map<T, F: FnMut(&Object<'_>) -> Option<T>>(look: F) -> Option<T> {
    unsafe extern "C" fn each<T, F: FnMut(&Object<'_>) -> Option<T>>(
        info: *mut dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a live structure, and the pointer that it was given below.
        let (info, (look, found)) = unsafe { (&*info, &mut *search.cast::<(F, Option<T>)>()) };
        *found = look(&Object(info));
        c_int::from(found.is_some())
    }
    let mut search = (look, None);
    // SAFETY: `each` has the signature that the loader calls, and treats its last argument as the pointer to
    // the live pair that it is.
    unsafe { dl_iterate_phdr(Some(each::<T, F>), (&raw mut search).cast()) };
    search.1
}

/// An object that the loader keeps loaded while it is visited.
pub(crate) struct Object<'a>(&'a dl_phdr_info);

impl Object<'_> {
    /// The address of the exported function or object `name`; its default version.
    pub(crate) fn find(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the loader keeps the object loaded.
        self.tables().and_then(|tables| unsafe { tables.find(name) })
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

/// The dynamic section of an object, which names the tables of its symbols.
pub(crate) struct Tables {
    base: usize,
    dynamic: *const Dynamic,
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
        Some(Self { base, dynamic: ptr::with_exposed_provenance(dynamic) })
    }

    /// The values of the entries with this tag.
    ///
    /// # Safety
    ///
    /// The object is loaded as long as the values are read.
    unsafe fn values(&self, wanted: i64) -> impl Iterator<Item = usize> + use<> {
        let mut next = self.dynamic;
        core::iter::from_fn(move || {
            loop {
                // SAFETY: by this function's contract; the section ends with a null entry, which is not passed.
                let Dynamic { tag, value } = unsafe { next.read() };
                if tag == DT_NULL {
                    return None;
                }
                // SAFETY: the section ends with a null entry, which this one is not.
                next = unsafe { next.add(1) };
                if tag == wanted {
                    return Some(address(value));
                }
            }
        })
    }

    /// The table with this tag, or null.
    ///
    /// # Safety
    ///
    /// The object is loaded.
    unsafe fn table<T>(&self, tag: i64) -> *const T {
        // SAFETY: by this function's contract.
        let value = unsafe { self.values(tag) }.next();
        value.map_or(ptr::null(), |value| {
            // The loader relocates these addresses, except in the kernel's own object.
            let at = if value < self.base { self.base.wrapping_add(value) } else { value };
            ptr::with_exposed_provenance(at)
        })
    }

    /// The symbol with this number, and its name.
    ///
    /// # Safety
    ///
    /// The object is loaded and has that symbol. It stays loaded as long as the result is used.
    unsafe fn symbol<'a>(&self, index: u32) -> Option<(&'a Elf64_Sym, &'a CStr)> {
        // SAFETY: by this function's contract; a symbol states where its name begins.
        unsafe {
            let symbols = self.table::<Elf64_Sym>(DT_SYMTAB).as_ref()?;
            let symbol = &*ptr::from_ref(symbols).add(address(index.into()));
            Some((symbol, self.string(address(symbol.st_name.into()))?))
        }
    }

    /// The string that begins at `offset` of the table of strings.
    ///
    /// # Safety
    ///
    /// An entry of the object states the offset. The object stays loaded as long as the string is used.
    unsafe fn string<'a>(&self, offset: usize) -> Option<&'a CStr> {
        // SAFETY: by this function's contract.
        unsafe {
            let strings = self.table::<u8>(DT_STRTAB);
            (!strings.is_null()).then(|| CStr::from_ptr(strings.add(offset).cast()))
        }
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
        [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)].into_iter().any(|(table, size)| {
            // SAFETY: as above.
            let (table, bytes) =
                unsafe { (self.table::<Elf64_Rela>(table), self.values(size).next()) };
            let count =
                if table.is_null() { 0 } else { bytes.unwrap_or(0) / size_of::<Elf64_Rela>() };
            (0..count).any(|place| {
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
        // SAFETY: the second number of a table of hashes is the first symbol that it has, before which no symbol is
        // exported, or counts all symbols.
        let end = [DT_GNU_HASH, DT_HASH].into_iter().find_map(|table| unsafe {
            let table = self.table::<u32>(table);
            (!table.is_null()).then(|| table.add(1).read())
        })?;
        (1..end).find(|index| {
            // SAFETY: the symbol exists.
            let found = unsafe { self.symbol(*index) };
            found.is_some_and(|(symbol, own)| symbol.st_shndx == 0 && own == name)
        })
    }

    /// The strings of the entries with this tag.
    ///
    /// # Safety
    ///
    /// The object is loaded as long as the strings are used.
    unsafe fn strings_of<'a>(&self, tag: i64) -> impl Iterator<Item = &'a CStr> {
        // SAFETY: by this function's contract; the entry states where its string begins.
        unsafe { self.values(tag).filter_map(|offset| self.string(offset)) }
    }

    /// The address of the exported function or object `name`; its default version.
    ///
    /// # Safety
    ///
    /// The object is loaded.
    unsafe fn find(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the object is loaded, and its hash table bounds the symbols.
        unsafe {
            let (gnu, sysv) = (self.table::<u32>(DT_GNU_HASH), self.table::<u32>(DT_HASH));
            if !gnu.is_null() {
                return self.find_by_gnu_hash(gnu, name);
            }
            let count = if sysv.is_null() { 0 } else { sysv.add(1).read() };
            (0..count).find_map(|index| self.matching(index, name))
        }
    }

    /// # Safety
    ///
    /// The object is loaded and has this table.
    unsafe fn find_by_gnu_hash(&self, table: *const u32, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the table has four numbers, a filter of 64-bit words, and buckets;
        // each bucket names the first symbol of its chain, whose last hash is odd.
        unsafe {
            let [buckets, first, filter_words] = [0, 1, 2].map(|place| table.add(place).read());
            let hash = gnu_hash(name);
            let bucket = hash.checked_rem(buckets)?;
            let bucket_table = table.add(4 + 2 * address(filter_words.into()));
            let chains = bucket_table.add(address(buckets.into()));
            let mut index = bucket_table.add(address(bucket.into())).read();
            if index == 0 {
                return None;
            }
            loop {
                let other = chains.add(address(index.checked_sub(first)?.into())).read();
                let found = (other | 1 == hash | 1).then(|| self.matching(index, name)).flatten();
                if found.is_some() || other & 1 == 1 {
                    return found;
                }
                index += 1;
            }
        }
    }

    /// The address of symbol `index`, if it is exported under this name.
    ///
    /// # Safety
    ///
    /// The object is loaded and has that symbol.
    unsafe fn matching(&self, index: u32, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the symbol exists, so its version does too.
        unsafe {
            let (symbol, own) = self.symbol(index)?;
            let versions = self.table::<u16>(DT_VERSYM);
            let is_hidden = !versions.is_null()
                && versions.add(address(index.into())).read() & HIDDEN_VERSION != 0;
            let has_address = symbol.st_shndx != 0 && ADDRESSES.contains(&(symbol.st_info & 0xf));
            let at = self.base.wrapping_add(address(symbol.st_value));
            (own == name && has_address && !is_hidden).then(|| ptr::with_exposed_provenance_mut(at))
        }
    }
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
            let has_bound = |object: &Object<'_>| {
                // SAFETY: the loader keeps the object loaded.
                let binds = |tables: Tables| unsafe { tables.has_bound(name, to) };
                (object.is_own() && object.tables().is_some_and(binds)).then_some(())
            };
            find_map(has_bound).is_some()
        };
        assert!(bound(c"malloc", malloc) && !bound(c"malloc", ptr::null()));
        assert!(!bound(c"no_such_function", malloc));
    }
}
