//! Copies of call arguments in unmanaged memory, which the kernel always finds present.
//!
//! This is the strongest cover for all arguments of moderate length. The call is made once, so it takes effect once, no
//! timeout restarts, and no result is lost because its page was evicted while the call slept. Null and unmanaged
//! pointers are passed through.

use libc::{pollfd, socklen_t};

use crate::calls::descriptors;
use crate::memory::access::{self, Access};
use crate::memory::bounce::Bounce;
use crate::memory::cover::{self, Outcome};

/// What an argument of a system call points to. The kernel only reads what is marked as read, and may also write what
/// is marked as written.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// A number.
    Plain,
    /// A C string.
    Text,
    /// This many bytes, read.
    Read(usize),
    /// This many bytes, written.
    Written(usize),
    /// An array, read: where its length is, and the bytes of an item.
    Reads(Length, usize),
    /// The same, written.
    Writes(Length, usize),
    /// An array of `pollfd`, whose length is in the argument of this index.
    Polled(usize),
    /// A written buffer whose length is stored where the argument of this index points.
    Named(usize),
    /// That of getsockopt.
    Choice,
    /// What a command for a message queue or for a shared segment is about. The command is in the argument of this
    /// index.
    OfQueue(usize),
    OfSegment(usize),
    /// The rights that capget tells.
    OfRights,
    /// Memory of unknown layout, of at least this many bytes. Faulted in, and again if it was evicted.
    Unknown(usize),
}

/// The argument that holds a length, by its index.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// A whole word.
    Word(usize),
    /// An int, of which the kernel reads the lower half. Below zero, it names nothing.
    Int(usize),
}

impl Length {
    fn of(self, words: &[usize; 6]) -> usize {
        match self {
            Length::Word(index) => words[index],
            Length::Int(index) => (words[index] as i32).max(0) as usize,
        }
    }

    /// That of the argument `name`.
    pub const fn named(name: &str, names: &[&str], are_ints: &[bool]) -> Length {
        let index = position(name, names);
        if are_ints[index] { Length::Int(index) } else { Length::Word(index) }
    }
}

/// The index of an argument.
pub const fn position(name: &str, names: &[&str]) -> usize {
    let mut index = 0;
    while index < names.len() {
        let (one, other) = (name.as_bytes(), names[index].as_bytes());
        let mut at = 0;
        while at < one.len() && at < other.len() && one[at] == other[at] {
            at += 1;
        }
        if at == one.len() && at == other.len() {
            return index;
        }
        index += 1;
    }
    panic!("no argument has this name")
}

/// The type of an argument.
pub trait Word: Copy {
    /// Whether it is an int, of either sign.
    const IS_INT: bool = false;
    fn length(self) -> usize {
        0
    }
    /// Whether it is one of the engine's descriptors, as an argument of this name.
    fn is_engines(self, _name: &str) -> bool {
        false
    }
}

/// For each type, and how a value of it is a length.
macro_rules! words {
    ($($kind:ty: $is_int:literal, |$word:ident| $length:expr;)*) => {$(
        impl Word for $kind {
            const IS_INT: bool = $is_int;
            fn length(self) -> usize {
                let $word = self;
                $length
            }
            fn is_engines(self, name: &str) -> bool {
                $is_int && matches!(name, "fd" | "at") && descriptors::is_engines(self as i32)
            }
        }
    )*};
}

words! {
    i32: true, |word| word.max(0) as usize;
    u32: true, |word| (word as i32).max(0) as usize;
    i64: false, |word| word as usize;
    u64: false, |word| word as usize;
    usize: false, |word| word;
}

impl<T> Word for *const T {}
impl<T> Word for *mut T {}

impl Argument {
    /// A value that a pointer of this type points to.
    pub const fn value<P: Pointer>() -> Argument {
        if P::WRITTEN { Argument::Written(P::BYTES) } else { Argument::Read(P::BYTES) }
    }

    pub const fn values<P: Pointer>(length: Length) -> Argument {
        if P::WRITTEN { Argument::Writes(length, P::BYTES) } else { Argument::Reads(length, P::BYTES) }
    }

    pub const fn bytes<P: Pointer>(length: Length) -> Argument {
        if P::WRITTEN { Argument::Writes(length, 1) } else { Argument::Reads(length, 1) }
    }

    /// A copy of what the argument of this index points to.
    ///
    /// # Safety
    /// `words` are the arguments of a call that the program makes.
    pub unsafe fn copy(self, words: &[usize; 6], index: usize) -> Option<Copied> {
        let word = words[index];
        let times = |length: Length, bytes: usize| length.of(words).saturating_mul(bytes);
        // SAFETY: the caller upholds this function's own contract. The lengths are those that the call itself uses.
        unsafe {
            Some(match self {
                Argument::Plain => return None,
                Argument::Text => text(word as *const u8),
                Argument::Read(bytes) => Copied::new(word, bytes, false),
                Argument::Written(bytes) => Copied::new(word, bytes, true),
                Argument::Reads(length, bytes) => Copied::new(word, times(length, bytes), false),
                Argument::Writes(length, bytes) => self::bytes(word as *mut u8, times(length, bytes)),
                Argument::Polled(of) => polled(word as *mut u8, words[of]),
                Argument::Named(of) => named(word as *mut u8, Pointer::at(words[of])),
                Argument::Choice => choice(word as *mut u8, (words[1] as i32, words[2] as i32, Pointer::at(words[4]))),
                Argument::OfQueue(of) => of_queue(word as *mut u8, words[of] as i32),
                Argument::OfSegment(of) => of_segment(word as *mut u8, words[of] as i32),
                Argument::OfRights => of_rights(word as *mut u8, words[0] as *const [u32; 2]),
                Argument::Unknown(bytes) => unknown(word as *mut u8, bytes),
            })
        }
    }
}

/// A pointer argument. Its type tells whether the kernel writes through it.
pub trait Pointer: Copy {
    const WRITTEN: bool;
    /// Of a value that it points to.
    const BYTES: usize;
    fn addr(self) -> usize;
    fn at(addr: usize) -> Self;
}

impl<T> Pointer for *const T {
    const WRITTEN: bool = false;
    const BYTES: usize = size_of::<T>();
    fn addr(self) -> usize {
        self as usize
    }
    fn at(addr: usize) -> Self {
        addr as *const T
    }
}

impl<T> Pointer for *mut T {
    const WRITTEN: bool = true;
    const BYTES: usize = size_of::<T>();
    fn addr(self) -> usize {
        self as usize
    }
    fn at(addr: usize) -> Self {
        addr as *mut T
    }
}

/// The longest range that is copied. No call takes or returns more than this, apart from file and stream data.
const MOST_BYTES: usize = 64 << 20;

/// What a call writes at most that gets a longer range than this: a length that is none, or the largest there is.
const MOST_WRITTEN_BYTES: usize = 1 << 20;

/// Which part of a copy is written back to the program. Beside it, what the call has changed is: all else may be
/// changed meanwhile by other threads, or by a handler that has interrupted the call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Nothing,
    /// All of it, if the call has succeeded.
    All,
    /// As many bytes as the call has returned.
    Start,
    /// None.
    Changes,
    /// There is no copy: the layout is unknown, and the range is faulted in before each try.
    Unknown,
}

/// A range of the program's memory, and its copy where one is needed.
pub struct Copied {
    addr: usize,
    len: usize,
    written: Written,
    copy: Option<Bounce>,
    /// The copy as it was before the call; `None`: the call does not write, or there is no memory.
    before: Option<Bounce>,
}

impl Copied {
    /// Copies `len` bytes if any of them are managed. If more than [`MOST_BYTES`] are read, or there is no memory for a
    /// copy, the range is only faulted in, and may be evicted again.
    ///
    /// # Safety
    /// The range is the program's, and is an argument of a call.
    pub unsafe fn new(addr: usize, len: usize, written: bool) -> Copied {
        let written = if written { Written::All } else { Written::Nothing };
        let mut copied = Copied { addr, len, written, copy: None, before: None };
        if cover::needed(addr, len) {
            let access = if written == Written::Nothing { Access::Read } else { Access::Write };
            // The kernel may do without writing to what it can read.
            let beginning = len.min(MOST_WRITTEN_BYTES);
            let is_protected = access == Access::Write
                && access::prefix(addr, beginning, Access::Write) < beginning
                && access::prefix(addr, beginning, Access::Read) == beginning;
            let copy = match len {
                _ if is_protected => Err(()),
                ..=MOST_BYTES => Bounce::fitting(addr, len, access),
                _ if access == Access::Write => {
                    Bounce::beginning(addr, access::prefix(addr, MOST_WRITTEN_BYTES, access))
                }
                _ => Err(()),
            };
            match copy {
                Ok(Some(copy)) => {
                    // SAFETY: the program's range, of which the copy covers what may be accessed. Memory that may be
                    // written may be read on this architecture.
                    unsafe { copy.fill(addr) };
                    if written != Written::Nothing {
                        copied.before = Bounce::new(0, copy.room());
                    }
                    if let Some(before) = &copied.before {
                        // SAFETY: the two have the same length.
                        unsafe { before.fill(copy.as_ptr() as usize) };
                    }
                    copied.copy = Some(copy);
                }
                Ok(None) => {} // the kernel says so
                // The length may be beyond what the program has, and what it has beyond the budget.
                Err(()) => cover::touch(addr as *const u8, access::prefix(addr, beginning, access)),
            }
        }
        copied
    }

    /// The address to pass to the kernel.
    pub fn addr(&self) -> usize {
        self.copy.as_ref().map_or(self.addr, |copy| copy.as_ptr() as usize)
    }

    /// The same address as a pointer.
    pub fn at<P: Pointer>(&self, _for: P) -> P {
        P::at(self.addr())
    }

    /// Copies what the kernel wrote back to the program. `result` is the call's. Returns what the program gets: a
    /// failure, if another thread has taken the memory away meanwhile.
    ///
    /// # Safety
    /// The range is the program's, or was.
    #[must_use]
    pub unsafe fn bring_back<R: Outcome>(&self, result: R) -> R {
        let Some(copy) = &self.copy else { return result };
        if matches!(self.written, Written::Nothing | Written::Unknown) {
            return result;
        }
        let nr_written = match self.written {
            Written::All if !result.is_failure() => self.len,
            Written::Start => result.length().min(self.len),
            _ => 0,
        };
        // How much of the rest the kernel would have written as it was, is not known.
        let nr_needed = if self.written == Written::Changes { copy.room() } else { nr_written };
        if !copy.fits(self.addr, nr_needed, self.before.as_ref()) {
            return if result.is_failure() { result } else { R::refused() };
        }
        // SAFETY: the program's range, which may be written, and a block of the same length. No lock is held, so the
        // range may fault.
        unsafe {
            match &self.before {
                Some(before) => copy.empty_changed(self.addr, nr_written, before),
                None => _ = copy.empty(self.addr, self.len),
            }
        }
        result
    }
}

/// Copies back what the kernel wrote to several copies. `result` is the call's. Returns what the program gets.
///
/// # Safety
/// As [`Copied::bring_back`].
#[must_use]
pub unsafe fn bring_all_back<'a, R: Outcome>(copies: impl IntoIterator<Item = &'a Copied>, result: R) -> R {
    // SAFETY: the caller upholds this function's own contract.
    copies.into_iter().fold(result, |result, copy| unsafe { copy.bring_back(result) })
}

/// Copies `len` bytes.
///
/// # Safety
/// `at` is null or the program's.
pub unsafe fn bytes<P: Pointer>(at: P, len: impl Word) -> Copied {
    // SAFETY: the caller upholds this function's own contract. Null is not managed.
    let copied = unsafe { Copied::new(at.addr(), len.length(), P::WRITTEN) };
    Copied { written: if P::WRITTEN { Written::Start } else { Written::Nothing }, ..copied }
}

/// Copies one value.
///
/// # Safety
/// `at` is null or the program's.
pub unsafe fn value<P: Pointer>(at: P) -> Copied {
    // SAFETY: the caller upholds this function's own contract.
    unsafe { Copied::new(at.addr(), P::BYTES, P::WRITTEN) }
}

/// Copies `count` values.
///
/// # Safety
/// `at` is null or the program's.
pub unsafe fn values<P: Pointer>(at: P, count: impl Word) -> Copied {
    // SAFETY: the caller upholds this function's own contract.
    unsafe { bytes(at, count.length().saturating_mul(P::BYTES)) }
}

/// Copies a list of `count` descriptors to poll. The kernel changes what has happened only, and another thread may
/// change the rest meanwhile.
///
/// # Safety
/// `at` is null or the program's.
pub unsafe fn polled<P: Pointer>(at: P, count: impl Word) -> Copied {
    // SAFETY: the caller upholds this function's own contract. The kernel takes the number's lower half.
    unsafe { changed(at, count.length() as u32 as usize * size_of::<pollfd>()) }
}

/// Copies a C string.
///
/// # Safety
/// `at` is null or a C string.
pub unsafe fn text<P: Pointer>(at: P) -> Copied {
    let managed = cover::needed(at.addr(), 1);
    // SAFETY: a C string, by this function's contract. If a part of it cannot be read, the kernel says so.
    let len = managed.then(|| unsafe { access::text_len(at.addr()) }).flatten().map_or(0, |len| len + 1);
    // SAFETY: the caller upholds this function's own contract.
    unsafe { bytes(at, len) }
}

/// Copies a socket call's result buffer, whose length is stored behind `len`.
///
/// # Safety
/// Each pointer is null or the program's.
pub unsafe fn named<P: Pointer>(at: P, len: *const socklen_t) -> Copied {
    // SAFETY: the caller upholds this function's own contract.
    unsafe { named_items(at, len, 1) }
}

/// The same, where the length counts items of this many bytes.
unsafe fn named_items<P: Pointer>(at: P, len: *const socklen_t, bytes: usize) -> Copied {
    // SAFETY: the caller's promise. Reading the length faults it in.
    unsafe {
        let len = if cover::needed(at.addr(), 1) { access::read(len) } else { None };
        let copied = Copied::new(at.addr(), len.unwrap_or(0) as usize * bytes, true);
        Copied { written: Written::Changes, ..copied }
    }
}

/// Copies what getsockopt tells. Its level, name and the place of its length; a filter's is in instructions.
///
/// # Safety
/// Each pointer is null or the program's.
pub unsafe fn choice<P: Pointer>(at: P, (level, name, len): (i32, i32, *const socklen_t)) -> Copied {
    let is_filter = (level, name) == (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the caller upholds this function's own contract.
    unsafe { named_items(at, len, if is_filter { size_of::<libc::sock_filter>() } else { 1 }) }
}

/// Copies `len` bytes of which a call may write some whether it succeeds or not.
///
/// # Safety
/// `at` is null or the program's.
pub unsafe fn changed<P: Pointer>(at: P, len: impl Word) -> Copied {
    // SAFETY: the caller upholds this function's own contract.
    let copied = unsafe { Copied::new(at.addr(), len.length(), true) };
    Copied { written: Written::Changes, ..copied }
}

/// The commands of System V that the libc crate lacks.
const MSG_INFO: i32 = 12;
const SHM_INFO: i32 = 14;
/// Bytes of what these tell, and IPC_INFO of queues and of segments.
const QUEUE_INFO_BYTES: usize = 32;
const SHM_INFO_BYTES: usize = 48;
const SEGMENT_INFO_BYTES: usize = 72;

/// Copies what a command for a message queue is about.
///
/// # Safety
/// `at` is null or the program's, if the command uses it.
pub unsafe fn of_queue<P: Pointer>(at: P, what: i32) -> Copied {
    let bytes = match what {
        libc::IPC_RMID => 0,
        libc::IPC_INFO | MSG_INFO => QUEUE_INFO_BYTES,
        _ => size_of::<libc::msqid_ds>(),
    };
    // SAFETY: the caller upholds this function's own contract.
    unsafe { Copied::new(at.addr(), bytes, what != libc::IPC_SET) }
}

/// Copies what a command for a shared segment is about.
///
/// # Safety
/// As [`of_queue`].
pub unsafe fn of_segment<P: Pointer>(at: P, what: i32) -> Copied {
    let bytes = match what {
        libc::IPC_RMID | libc::SHM_LOCK | libc::SHM_UNLOCK => 0,
        libc::IPC_INFO => SEGMENT_INFO_BYTES,
        SHM_INFO => SHM_INFO_BYTES,
        _ => size_of::<libc::shmid_ds>(),
    };
    // SAFETY: the caller upholds this function's own contract.
    unsafe { Copied::new(at.addr(), bytes, what != libc::IPC_SET) }
}

/// Copies the rights that capget tells: as many as its version has.
///
/// # Safety
/// Each pointer is null or the program's.
pub unsafe fn of_rights<P: Pointer>(at: P, header: *const [u32; 2]) -> Copied {
    // SAFETY: the caller upholds this function's own contract.
    unsafe {
        let bytes = match access::read(header) {
            Some([SHORT_RIGHTS, _]) => 12,
            Some(_) => 24,
            None => 0,
        };
        Copied::new(at.addr(), bytes, true)
    }
}

/// What has at least `len` bytes of unknown layout.
///
/// # Safety
/// `at` is null or the program's.
pub unsafe fn unknown<P: Pointer>(at: P, len: usize) -> Copied {
    Copied { addr: at.addr(), len, written: Written::Unknown, copy: None, before: None }
}

/// Makes a call, and brings back what it wrote. What is of unknown layout is faulted in before it, and again if the
/// kernel missed a page.
///
/// # Safety
/// The ranges are still the program's.
pub unsafe fn make<'a, R: Outcome>(copies: impl Iterator<Item = &'a Copied> + Clone, call: impl Fn() -> R) -> R {
    let unknown = || copies.clone().filter(|copy| copy.written == Written::Unknown);
    let bring_in = || unknown().for_each(|range| cover::structure(range.addr as *const u8, range.len));
    let result = if unknown().next().is_some() { cover::repeat(bring_in, call) } else { call() };
    // SAFETY: the caller upholds this function's own contract.
    unsafe { bring_all_back(copies, result) }
}

/// Defines functions that make one call with copies of what their arguments point to. A pointer argument has its kind
/// after its type: `= text`, `value`, `bytes(len)`, `values(count)`, `polled(count)`, `named(len)` or `unknown(LEAST)`.
/// Functions with several names are the same.
macro_rules! copied {
    ($(fn $($name:ident),+ ($($argument:tt)*) -> $result:ty;)*) => {
        $($crate::calls::copied::functions! { [$($name),+] ($($argument)*) -> $result })*
    };
}
pub(crate) use copied;

/// The same for functions that are a system call as it is, and defines `ROWS`: the arguments by number.
macro_rules! calls {
    ($(fn $($name:ident),+ = $number:ident $arguments:tt -> $result:ty;)*) => {
        $($crate::calls::copied::functions! { [$($name),+] $arguments -> $result })*

        const ROWS: &[(std::ffi::c_long, &[$crate::calls::copied::Argument])] =
            &[$((libc::$number, $crate::calls::copied::row!($arguments))),*];
    };
}
pub(crate) use calls;

macro_rules! functions {
    ([$($name:ident),+] $arguments:tt -> $result:ty) => {
        $($crate::calls::copied::function! { $name $arguments -> $result })+
    };
}
pub(crate) use functions;

macro_rules! function {
    ($name:ident ($($arg:ident: $type:ty $(= $what:ident $(($len:expr))?)?),* $(,)?) -> $result:ty) => {
        $crate::ground::export::export! {
            fn $name($($arg: $type),*) -> $result {
                $crate::ground::export::real_of!(REAL = $name: fn($($type),*) -> $result);
                let real = REAL.get();
                if false $(|| $crate::calls::copied::Word::is_engines($arg, stringify!($arg)))* {
                    return $crate::calls::descriptors::not_open();
                }
                // SAFETY: the caller's call, whose pointers are null, valid, or replaced by copies of what they point
                // to.
                unsafe {
                    let copies = [$($($crate::calls::copied::$what($arg $(, $len)?),)?)*];
                    let mut next = copies.iter();
                    $($(let $arg = next.next().map_or($arg, |copy: &$crate::calls::copied::Copied| {
                        const _: &str = stringify!($what);
                        copy.at($arg)
                    });)?)*
                    let _ = next;
                    $crate::calls::copied::make(copies.iter(), || real($($arg),*))
                }
            }
        }
    };
}
pub(crate) use function;

/// The arguments of a row of [`calls!`].
macro_rules! row {
    (($($arg:ident: $type:ty $(= $what:ident $(($len:tt))?)?),* $(,)?)) => {{
        // What names no length needs neither.
        #[allow(dead_code)]
        const NAMES: &[&str] = &[$(stringify!($arg)),*];
        #[allow(dead_code)]
        const ARE_INTS: &[bool] = &[$(<$type as $crate::calls::copied::Word>::IS_INT),*];
        const ROW: &[$crate::calls::copied::Argument] =
            &[$($crate::calls::copied::argument!(NAMES, ARE_INTS, $type $(, $what $($len)?)?)),*];
        ROW
    }};
}
pub(crate) use row;

macro_rules! argument {
    ($names:ident, $ints:ident, $type:ty) => {
        $crate::calls::copied::Argument::Plain
    };
    ($names:ident, $ints:ident, $type:ty, text) => {
        $crate::calls::copied::Argument::Text
    };
    ($names:ident, $ints:ident, $type:ty, value) => {
        $crate::calls::copied::Argument::value::<$type>()
    };
    ($names:ident, $ints:ident, $type:ty, polled $len:ident) => {
        $crate::calls::copied::Argument::Polled($crate::calls::copied::position(stringify!($len), $names))
    };
    ($names:ident, $ints:ident, $type:ty, named $len:ident) => {
        $crate::calls::copied::Argument::Named($crate::calls::copied::position(stringify!($len), $names))
    };
    ($names:ident, $ints:ident, $type:ty, choice $all:tt) => {
        $crate::calls::copied::Argument::Choice
    };
    ($names:ident, $ints:ident, $type:ty, of_rights $header:ident) => {
        $crate::calls::copied::Argument::OfRights
    };
    ($names:ident, $ints:ident, $type:ty, of_queue $what:ident) => {
        $crate::calls::copied::Argument::OfQueue($crate::calls::copied::position(stringify!($what), $names))
    };
    ($names:ident, $ints:ident, $type:ty, of_segment $what:ident) => {
        $crate::calls::copied::Argument::OfSegment($crate::calls::copied::position(stringify!($what), $names))
    };
    ($names:ident, $ints:ident, $type:ty, unknown $least:tt) => {
        $crate::calls::copied::Argument::Unknown($least)
    };
    ($names:ident, $ints:ident, $type:ty, $values:ident $len:ident) => {
        $crate::calls::copied::Argument::$values::<$type>($crate::calls::copied::Length::named(
            stringify!($len),
            $names,
            $ints,
        ))
    };
}
pub(crate) use argument;

/// What the kernel gets for a value at `theirs`: the copy, if there is one, or the program's pointer, which the kernel
/// refuses.
pub fn or_theirs<T>(copy: &Option<T>, theirs: usize) -> usize {
    copy.as_ref().map_or(theirs, |copy| &raw const *copy as usize)
}

/// The version of capabilities with one structure of rights. Later ones have two.
pub const SHORT_RIGHTS: u32 = 0x1998_0330;
