//! How many addresses an arena can manage, and the errors beyond that.

use folioswap::{Arena, ArenaBuilder, DeviceSpec};

const TIB: u64 = 1 << 40;

fn builder() -> ArenaBuilder {
    Arena::builder().memory(16 << 20).device(DeviceSpec::Ram { size: 64 << 20 })
}

/// An arena, unless this process may not have as many addresses.
fn build(builder: ArenaBuilder) -> Option<Arena> {
    match builder.build() {
        Err(error) if error.to_string().contains("Cannot allocate memory") => {
            println!("SKIP: this process may not have so many addresses: {error}");
            None
        }
        other => Some(other.unwrap()),
    }
}

#[test]
fn the_far_end_of_64_tib_is_as_good_as_any() {
    const LEN: usize = 48 << 20;
    let Some(arena) = build(builder().address_space(64 * TIB)) else { return };
    let (space, len) = (arena.raw(), arena.raw().span().len());
    assert_eq!(len as u64, 64 * TIB);
    let at = space.span().end - LEN;
    // SAFETY: addresses of the arena's own that nobody uses yet.
    unsafe { space.map_at(at, LEN) }.unwrap();
    // SAFETY: just mapped, readable and writable, and used by nobody else.
    let words = unsafe { std::slice::from_raw_parts_mut(at as *mut u64, LEN / 8) };
    for turn in 1..3 {
        words.iter_mut().zip(1..).for_each(|(word, number)| *word = number * turn);
        arena.evict_all();
        assert!(words.iter().zip(1..).all(|(&word, number)| word == number * turn));
    }
    assert!(arena.stats().swapped_in_bytes >= LEN as u64, "three times what RAM holds");
    // SAFETY: nobody uses them any more.
    unsafe { space.unmap(at, LEN) };
}

#[test]
fn there_are_addresses_for_all_that_memory_and_devices_hold() {
    let span = |arena: Arena| arena.raw().span().len() as u64;
    if let Some(small) = build(builder()) {
        assert_eq!(span(small), TIB);
    }
    if let Some(large) = build(builder().device(DeviceSpec::Ram { size: TIB })) {
        assert_eq!(span(large), 8 * TIB);
    }
}

#[test]
fn what_is_too_much_is_refused_by_name() {
    let file = |size| DeviceSpec::File { path: std::env::temp_dir().join("folioswap-too-large"), size: Some(size) };
    for (builder, reason) in [
        (builder().address_space(0), "2M to 64T of addresses"),
        (builder().address_space(64 * TIB + 1), "2M to 64T of addresses"),
        (builder().address_space(u64::MAX), "2M to 64T of addresses"),
        (builder().memory(16 * TIB), "at most 15T"),
        (builder().memory(u64::MAX), "at most 15T"),
        (builder().device(file(16 * TIB + 4096)), "at most 16T"),
        (builder().device(DeviceSpec::Ram { size: 17 * TIB }), "at most 16T"),
        (builder().device(DeviceSpec::Ram { size: u64::MAX }), "at most 16T"),
        (builder().device("zram:257G".parse::<DeviceSpec>().unwrap()), "at most 256G"),
    ] {
        let Err(error) = builder.build() else { panic!("{reason}: it was built") };
        let text = error.to_string();
        assert!(text.contains(reason) && !text.contains('\n'), "{reason}: {text}");
        assert!(matches!(error.exit_status(), 64 | 65 | 69), "{text}: {}", error.exit_status());
    }
}

#[test]
fn a_device_that_is_too_large_is_not_added() {
    let arena = builder().build().unwrap();
    let error = arena.add_device(&DeviceSpec::Ram { size: 17 * TIB }).unwrap_err().to_string();
    assert!(error.contains("at most 16T") && arena.devices().len() == 1, "{error}");
}
