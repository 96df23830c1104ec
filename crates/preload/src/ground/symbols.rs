//! Which loaded objects define a symbol, by their own tables. dlsym finds that, too. But where it finds nothing it
//! allocates the text for dlerror, by an allocator of the program's that may not be ready before `main`.

use std::ffi::{CStr, c_char};

use crate::ground::c_library::{Object, STRTAB, SYMTAB, dynamic_value, each_object};

/// Whether an address is in this library.
pub fn is_own_image(addr: usize) -> bool {
    unsafe extern "C" {
        #[link_name = "__ehdr_start"]
        static START: u8;
        #[link_name = "_end"]
        static END: u8;
    }
    (&raw const START as usize..&raw const END as usize).contains(&addr)
}

/// The tags of the hash tables of symbols, and of the table of their versions.
const HASH: usize = 4;
const GNU_HASH: usize = 0x6fff_fef5;
const VERSIONS: usize = 0x6fff_fff0;

/// Of a version that only programs have which were linked when it was there.
const IS_OLD: u16 = 1 << 15;

/// A symbol: the place of its name, what it is, the section that defines it or 0, its value and size.
#[repr(C)]
struct Symbol {
    name: u32,
    kind: [u8; 2],
    section: u16,
    value: [usize; 2],
}

struct Tables {
    base: usize,
    symbols: *const Symbol,
    names: *const c_char,
    /// `None`: it has the older one, or none.
    hashed: Option<*const u32>,
    nr_symbols: usize,
    versions: Option<*const u16>,
    is_own: bool,
}

/// The hash of a name in the newer tables.
fn hash_of(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}

/// The objects that are loaded, in the order in which the loader searches them.
pub struct Objects(Vec<Tables>);

impl Objects {
    /// Those that are loaded now. They must stay so.
    pub fn loaded() -> Self {
        let mut objects = Objects(Vec::new());
        each_object(|object| {
            objects.0.extend(Tables::of(object));
            false
        });
        objects
    }

    /// For each object that defines a symbol: whether it is this library. `also_old`: in any version.
    fn definers(&self, name: &CStr, also_old: bool) -> impl Iterator<Item = bool> {
        let hash = hash_of(name);
        // SAFETY: the tables of a loaded object.
        let defines = move |tables: &&Tables| unsafe { tables.place(name, hash, also_old).is_some() };
        self.0.iter().filter(defines).map(|tables| tables.is_own)
    }

    /// Whether another object than this library defines a symbol. `also_old`: also in a version for old programs only.
    pub fn define_elsewhere(&self, name: &CStr, also_old: bool) -> bool {
        self.definers(name, also_old).any(|is_own| !is_own)
    }

    /// Where this library defines a symbol.
    pub fn own(&self, name: &CStr) -> Option<usize> {
        let own = self.0.iter().find(|tables| tables.is_own)?;
        // SAFETY: the tables of this library.
        unsafe { own.place(name, hash_of(name), false) }
    }

    /// Whether this library's definition of a symbol is not the one that others use.
    pub fn define_before(&self, name: &CStr) -> bool {
        self.definers(name, false).next() == Some(false)
    }
}

impl Tables {
    /// Those of an object, if it has some.
    fn of(object: &Object<'_>) -> Option<Tables> {
        let (base, here) = (object.base, Tables::of as *const () as usize);
        let dynamic = object.parts(libc::PT_DYNAMIC).next()?;
        // SAFETY: the object's dynamic section, which ends with a zero. The loader has made most places in it
        // addresses.
        let value = |tag| unsafe { dynamic_value(dynamic.start, tag) };
        let place = |tag| value(tag).map(|at| if at < base { at + base } else { at });
        Some(Tables {
            base,
            symbols: place(SYMTAB)? as *const Symbol,
            names: place(STRTAB)? as *const c_char,
            hashed: place(GNU_HASH).map(|at| at as *const u32),
            // SAFETY: the table begins with the numbers of its buckets and of the symbols.
            nr_symbols: place(HASH).map_or(0, |at| unsafe { *(at as *const u32).add(1) } as usize),
            versions: place(VERSIONS).map(|at| at as *const u16),
            is_own: object.has(here),
        })
    }

    /// Where the object defines a symbol.
    ///
    /// # Safety
    /// The object is loaded.
    unsafe fn place(&self, name: &CStr, hash: u32, also_old: bool) -> Option<usize> {
        let Some(table) = self.hashed else {
            // SAFETY: so many symbols, by the older table.
            return (0..self.nr_symbols).find_map(|index| unsafe { self.place_at(index, name, also_old) });
        };
        // SAFETY: a table as the linker makes it: four numbers, the words of a filter, the first symbol of each bucket,
        // and the hashes of the symbols, the last of a bucket with the lowest bit set.
        unsafe {
            let [nr_buckets, first, nr_words, shift] = [0, 1, 2, 3].map(|at| *table.add(at));
            let filter = table.add(4).cast::<u64>();
            let word = *filter.add((hash / 64 % nr_words) as usize);
            if word >> (hash % 64) & word >> ((hash >> shift) % 64) & 1 == 0 {
                return None;
            }
            let buckets = filter.add(nr_words as usize).cast::<u32>();
            let hashes = buckets.add(nr_buckets as usize);
            let mut index = *buckets.add((hash % nr_buckets) as usize);
            while index >= first {
                let found = *hashes.add((index - first) as usize);
                if (found ^ hash) >> 1 == 0
                    && let Some(place) = self.place_at(index as usize, name, also_old)
                {
                    return Some(place);
                }
                if found & 1 != 0 {
                    return None;
                }
                index += 1;
            }
        }
        None
    }

    /// The place of the symbol at an index, if it is defined there by this name.
    ///
    /// # Safety
    /// The object is loaded, and has that many symbols.
    unsafe fn place_at(&self, index: usize, name: &CStr, also_old: bool) -> Option<usize> {
        // SAFETY: the caller's promise.
        unsafe {
            let symbol = &*self.symbols.add(index);
            let is_defined = symbol.section != 0
                && (also_old || self.versions.is_none_or(|versions| *versions.add(index) & IS_OLD == 0))
                && CStr::from_ptr(self.names.add(symbol.name as usize)) == name;
            is_defined.then(|| self.base + symbol.value[0])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_defined_is_found_and_nothing_else() {
        let objects = Objects::loaded();
        for name in [c"getpid", c"dlsym", c"environ", c"pthread_create"] {
            assert!(objects.define_elsewhere(name, false), "{name:?}");
        }
        for name in [c"ustat", c"no_such_function", c"__asan_init"] {
            assert!(!objects.define_elsewhere(name, false) && !objects.define_before(name), "{name:?}");
        }
    }
}
