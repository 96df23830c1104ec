//! The size classes to which objects are rounded up.
//!
//! Classes step by 64 bytes up to 2 KiB, then by a sixteenth of the power of two below, so rounding adds at most a
//! sixteenth to an object of more than 1 KiB. Objects of a class lie in groups without gaps; a group fills whole pages
//! exactly. It has 64 objects in the small classes, fewer in larger ones. Memory is given back by the group, so a group
//! has at most 128 KiB.

use crate::order::PAGE_SIZE;

/// The largest object: 64 KiB.
pub const MAX_OBJECT_BYTES: usize = 64 << 10;

/// Bytes between the smallest classes.
const SMALLEST_STEP: usize = 64;

/// Classes up to 1 KiB, and per doubling from there.
const STEPS: usize = 16;

/// Doublings from 1 KiB to the largest class.
const DOUBLINGS: usize = (MAX_OBJECT_BYTES / (SMALLEST_STEP * STEPS)).ilog2() as usize;

/// How many classes there are.
pub const NR_CLASSES: usize = STEPS + DOUBLINGS * STEPS;

/// Objects of one size.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SizeClass(u8);

impl SizeClass {
    /// The smallest class for objects of this length.
    ///
    /// # Panics
    /// When the length is 0 or above [`MAX_OBJECT_BYTES`].
    pub fn of(len: usize) -> SizeClass {
        assert!((1..=MAX_OBJECT_BYTES).contains(&len), "an object of {len} bytes");
        let units = (len - 1) / SMALLEST_STEP;
        if units < STEPS {
            return SizeClass(units as u8);
        }
        // The highest bit selects the doubling, the four bits below it the class.
        let doubling = (units / STEPS).ilog2() as usize;
        SizeClass((STEPS + doubling * STEPS + (units >> doubling) % STEPS) as u8)
    }

    /// The class with this number.
    ///
    /// # Panics
    /// When there is no class with this number.
    pub fn from_index(index: usize) -> SizeClass {
        assert!(index < NR_CLASSES, "class {index}");
        SizeClass(index as u8)
    }

    /// Its number, from 0 on.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// How many times the smallest step has doubled.
    const fn doublings(self) -> usize {
        (self.0 as usize / STEPS).saturating_sub(1)
    }

    /// Bytes of an object.
    pub const fn object_bytes(self) -> usize {
        let index = self.0 as usize;
        if index < STEPS {
            return (index + 1) * SMALLEST_STEP;
        }
        (STEPS + index % STEPS + 1) * (SMALLEST_STEP << self.doublings())
    }

    /// Objects in a group.
    pub const fn group_objects(self) -> usize {
        u64::BITS as usize >> self.doublings()
    }

    /// Bytes of a group: whole pages.
    pub const fn group_bytes(self) -> usize {
        self.object_bytes() * self.group_objects()
    }

    /// Pages that the first `nr_objects` objects of a group touch.
    pub(super) const fn pages_of(self, nr_objects: usize) -> usize {
        (nr_objects * self.object_bytes()).div_ceil(PAGE_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rise_and_each_length_is_in_the_smallest_that_holds_it() {
        let classes: Vec<_> = (0..NR_CLASSES).map(SizeClass::from_index).collect();
        assert!(classes.is_sorted_by_key(|class| class.object_bytes()));
        assert_eq!((classes[0].object_bytes(), classes[NR_CLASSES - 1].object_bytes()), (64, MAX_OBJECT_BYTES));
        for len in 1..=MAX_OBJECT_BYTES {
            let class = SizeClass::of(len);
            assert!(class.object_bytes() >= len, "{len} in {}", class.object_bytes());
            assert!(class.index() == 0 || classes[class.index() - 1].object_bytes() < len);
            assert!(class.object_bytes() - len < (len / 16).max(64), "{len}");
        }
    }

    #[test]
    fn groups_are_whole_pages_and_not_large() {
        for class in (0..NR_CLASSES).map(SizeClass::from_index) {
            assert!(class.group_bytes().is_multiple_of(PAGE_SIZE), "{class:?}");
            assert!(class.group_bytes() <= 128 << 10 && class.group_objects() >= 1, "{class:?}");
            assert_eq!(class.pages_of(class.group_objects()) * PAGE_SIZE, class.group_bytes());
        }
    }
}
